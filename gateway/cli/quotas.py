"""`wye quotas`: limits of tenants, what they use, and corrections."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gateway.cli.admin_client import (
    AdminClient,
    AdminKeyOption,
    TenantArgument,
    UrlOption,
    show_pairs,
    show_table,
    when,
)
from gateway.cli.console import print_json
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL

app = typer.Typer(no_args_is_help=True, help="Show and set limits of tenants.")

LIMITS = "/admin/kv_limits"

NONE = "none"
"""What takes a limit away."""


@app.command("list")
def list_quotas(url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = "", json: JsonOption = False) -> None:
    """List tenants with what they use, hold and may use, in KiB-seconds."""
    found = list(AdminClient(url, admin_key).pages(LIMITS))
    if json:
        print_json(found)
        return
    rows = []
    for one in found:
        usage, limits = one["usage"], one["limits"]
        rows.append(
            (
                one["id"],
                one["state"],
                f"{usage['used_kib_seconds']:.0f}",
                f"{usage['held_kib_seconds']:.0f}",
                limits["kv_kib_seconds"],
                when(usage["resets_at"]),
                usage["num_running"],
                one["name"],
            )
        )
    show_table(["id", "state", "used", "held", "limit", "resets", "running", "name"], rows)


@app.command()
def show(
    tenant: TenantArgument, url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = "", json: JsonOption = False
) -> None:
    """Show all limits of a tenant and what it uses now."""
    client = AdminClient(url, admin_key)
    _show(client.send("GET", f"{LIMITS}/{client.tenant(tenant)}"), json)


@app.command("set")
def set_quota(
    tenant: TenantArgument,
    kv: Annotated[str, typer.Option("--kv", help="KiB-seconds of a window, or none.")] = "",
    window: Annotated[str, typer.Option("--window", help="hour, day, week, month @ZONE, or rolling:SECONDS.")] = "",
    soft: Annotated[str, typer.Option("--soft", help="Percent of it that the ledger notes, or none.")] = "",
    resident: Annotated[str, typer.Option("--resident", help="Most KiB at once, or none.")] = "",
    requests: Annotated[str, typer.Option("--requests", help="Most requests per minute, or none.")] = "",
    tokens: Annotated[str, typer.Option("--tokens", help="Most tokens per minute, or none.")] = "",
    concurrency: Annotated[str, typer.Option("--concurrency", help="Most requests at once, or none.")] = "",
    weight: Annotated[str, typer.Option("--weight", help="Share of a busy engine, or none.")] = "",
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Change limits of a tenant; what is not named stays. They hold from the next request on."""
    given = {
        "kv_kib_seconds": _number(kv, "--kv"),
        "kv_soft_percent": _number(soft, "--soft"),
        "resident_kib": _number(resident, "--resident"),
        "requests_per_minute": _number(requests, "--requests"),
        "tokens_per_minute": _number(tokens, "--tokens"),
        "concurrency": _number(concurrency, "--concurrency"),
        "weight": _number(weight, "--weight"),
    }
    body: dict[str, Any] = {name: value for name, value in given.items() if value != ""}
    body = {name: None if value == NONE else value for name, value in body.items()}
    if window:
        body["kv_window"] = window
    if not body:
        raise typer.BadParameter("name at least one limit")
    client = AdminClient(url, admin_key)
    _show(client.send("POST", f"{LIMITS}/{client.tenant(tenant)}", body), json)


@app.command()
def adjust(
    tenant: TenantArgument,
    reason: Annotated[str, typer.Option("--reason", help="For the audit.")],
    add: Annotated[int, typer.Option("--add", min=0, help="KiB-seconds to add to what was used.")] = 0,
    take_off: Annotated[int, typer.Option("--take-off", min=0, help="KiB-seconds to take off.")] = 0,
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Correct what a tenant used in its window."""
    if bool(add) == bool(take_off):
        raise typer.BadParameter("give one of --add and --take-off")
    client = AdminClient(url, admin_key)
    body = {"kib_seconds": add - take_off, "reason": reason}
    _show(client.send("POST", f"{LIMITS}/{client.tenant(tenant)}/adjust", body), json)


def _show(found: dict[str, Any], json: bool) -> None:
    if json:
        print_json(found)
        return
    usage = found["usage"]
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in usage.items()}
    rounded |= {name: when(usage[name]) for name in ("window_begins_at", "resets_at")}
    show_pairs({"id": found["id"], "name": found["name"], "state": found["state"], **found["limits"], **rounded})


def _number(text: str, option: str) -> int | str:
    if text in ("", NONE):
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor none", param_hint=option) from None
