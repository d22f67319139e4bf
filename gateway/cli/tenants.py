"""`wye tenants`: who may use a server, and all of it as one file."""

from __future__ import annotations

import enum
import json as json_text
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.admin_client import (
    AdminClient,
    AdminKeyOption,
    TenantArgument,
    UrlOption,
    show_table,
    when,
)
from gateway.cli.console import messages, print_error, print_json
from gateway.cli.exits import Exit
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL

app = typer.Typer(no_args_is_help=True, help="Make, list and stop tenants; write them to a file and read them back.")

PROJECTS = "/organization/projects"


class StateChoice(enum.StrEnum):
    """Whether a tenant is served."""

    ACTIVE = "active"
    SHADOW = "shadow"
    SUSPENDED = "suspended"


@app.command("list")
def list_tenants(
    archived: Annotated[bool, typer.Option("--archived", help="Those that were ended too.")] = False,
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """List tenants, oldest first."""
    found = list(AdminClient(url, admin_key).pages(PROJECTS, include_archived="true" if archived else "false"))
    if json:
        print_json(found)
        return
    show_table(
        ["id", "state", "made", "name"],
        [(one["id"], one["state"], when(one["created_at"]), one["name"]) for one in found],
    )


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="For people; several tenants may have the same.")],
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Make a tenant, without limits. Prints its id."""
    made = AdminClient(url, admin_key).send("POST", PROJECTS, {"name": name})
    if json:
        print_json(made)
    else:
        print(made["id"])


@app.command("state")
def set_state(
    tenant: TenantArgument,
    state: Annotated[StateChoice, typer.Argument(help="shadow counts limits and does not enforce them.")],
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
) -> None:
    """Serve a tenant, stop it for a while, or try its limits out."""
    client = AdminClient(url, admin_key)
    changed = client.send("POST", f"/admin/kv_limits/{client.tenant(tenant)}", {"state": state.value})
    messages().print(f"{changed['id']} is {changed['state']}", markup=False)


@app.command()
def archive(tenant: TenantArgument, url: UrlOption = DEFAULT_URL, admin_key: AdminKeyOption = "") -> None:
    """End a tenant: its keys open nothing more. What it used stays known."""
    client = AdminClient(url, admin_key)
    done = client.send("POST", f"{PROJECTS}/{client.tenant(tenant)}/archive")
    messages().print(f"{done['id']} is archived", markup=False)


@app.command("export")
def export_tenants(
    file: Annotated[Path, typer.Argument(help="Where to write; - is standard output.", allow_dash=True)],
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
) -> None:
    """Write all tenants, limits and keys to a file. No secret can be read from it; keep it as you keep keys."""
    text = json_text.dumps(AdminClient(url, admin_key).send("GET", "/admin/export"), indent=2, ensure_ascii=False)
    if str(file) == "-":
        print(text)
        return
    file.write_text(text + "\n", "utf-8")
    file.chmod(0o600)


@app.command("import")
def import_tenants(
    file: Annotated[Path, typer.Argument(help="What export wrote; - is standard input.", allow_dash=True)],
    check: Annotated[bool, typer.Option("--check", help="Only say what would change.")] = False,
    url: UrlOption = DEFAULT_URL,
    admin_key: AdminKeyOption = "",
    json: JsonOption = False,
) -> None:
    """Make what is in a file, and change what is there already; what is not in it stays."""
    try:
        body = json_text.loads(sys.stdin.read() if str(file) == "-" else file.read_text("utf-8"))
    except ValueError as error:
        print_error(f"{file} is no JSON: {error}")
        raise typer.Exit(Exit.USAGE) from None
    path = f"/admin/import?dry_run={'true' if check else 'false'}"
    done = AdminClient(url, admin_key).send("POST", path, body)
    if json:
        print_json(done)
        return
    for what in ("created", "updated"):
        for one in done[what]:
            print(f"{'would be ' if check else ''}{what}: {one}")
    messages().print(f"{len(done['unchanged'])} unchanged", markup=False)
