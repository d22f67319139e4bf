"""`wye keys`: API keys of tenants."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import (
    AdminClient,
    AdminKeyOption,
    TenantArgument,
    UrlOption,
    show_table,
    when,
)
from gateway.cli.console import messages, print_json
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL

app = typer.Typer(no_args_is_help=True, help="Make, list, rotate, disable and delete API keys of tenants.")

KeyArgument = Annotated[str, typer.Argument(help="Id of the key: key_...")]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command("list")
def list_keys(
    tenant: TenantArgument, url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = "", json: JsonOption = False
) -> None:
    """List keys of a tenant; their secrets are not known to anybody."""
    client = AdminClient(url, admin_key)
    found = list(client.pages(f"/organization/projects/{client.tenant(tenant)}/api_keys"))
    if json:
        print_json(found)
        return
    show_table(
        ["id", "state", "scopes", "expires", "last used", "name"],
        [
            (
                one["id"],
                "disabled" if one["disabled"] else "active",
                " ".join(one["scopes"]),
                when(one["expires_at"]),
                when(one["last_used_at"]),
                one["name"],
            )
            for one in found
        ],
    )


@app.command()
def create(
    tenant: TenantArgument,
    name: Annotated[str, typer.Option("--name", help="For people.")] = "API key",
    scope: Annotated[list[str] | None, typer.Option("--scope", help="What it may do; repeat it.")] = None,
    expires: Annotated[str, typer.Option("--expires", help="For how long, as 90d, 12h or 30m.")] = "",
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Most requests per minute.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Most tokens per minute.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", min=1, help="Most requests at once.")] = None,
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Make a key. It is printed now and never again."""
    client = AdminClient(url, admin_key)
    body: dict[str, Any] = {
        "name": name,
        "scopes": scope or [],
        "requests_per_minute": requests,
        "tokens_per_minute": tokens,
        "concurrency": concurrency,
    }
    if expires:
        body["expires_in_seconds"] = _seconds(expires, "--expires")
    made = client.send("POST", f"/admin/projects/{client.tenant(tenant)}/api_keys", body)
    _show_new(made, json)


@app.command()
def rotate(
    tenant: TenantArgument,
    key: KeyArgument,
    overlap: Annotated[str, typer.Option("--overlap", help="The old secret works for so long, as 1h.")] = "",
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Give a key another secret. It is printed now and never again."""
    client = AdminClient(url, admin_key)
    body = {"overlap_seconds": _seconds(overlap, "--overlap") if overlap else 0}
    _show_new(client.send("POST", f"/admin/projects/{client.tenant(tenant)}/api_keys/{key}/rotate", body), json)


@app.command()
def disable(
    tenant: TenantArgument, key: KeyArgument, url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = ""
) -> None:
    """Have a key open nothing, until it is enabled again."""
    _set_disabled(url, admin_key, tenant, key, is_disabled=True)


@app.command()
def enable(
    tenant: TenantArgument, key: KeyArgument, url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = ""
) -> None:
    """Have a key work again that was disabled."""
    _set_disabled(url, admin_key, tenant, key, is_disabled=False)


@app.command()
def delete(
    tenant: TenantArgument, key: KeyArgument, url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = ""
) -> None:
    """Forget a key; it opens nothing from now on."""
    client = AdminClient(url, admin_key)
    client.send("DELETE", f"/organization/projects/{client.tenant(tenant)}/api_keys/{key}")
    messages().print(f"{key} is deleted", markup=False)


def _set_disabled(url: str, admin_key: str, tenant: str, key: str, *, is_disabled: bool) -> None:
    client = AdminClient(url, admin_key)
    path = f"/organization/projects/{client.tenant(tenant)}/api_keys/{key}"
    client.send("POST", path, {"disabled": is_disabled})
    messages().print(f"{key} is {'disabled' if is_disabled else 'enabled'}", markup=False)


def _show_new(made: dict[str, Any], json: bool) -> None:
    if json:
        print_json(made)
        return
    print(made["value"])
    messages().print(f"{made['id']}: keep the key now, it is not shown again", markup=False)


def _seconds(text: str, option: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no time; write 90d, 12h, 30m or 45s", param_hint=option)
    return int(match[1]) * _UNITS_S[match[2]]
