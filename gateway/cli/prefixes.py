"""`wye prefixes`: histories that a server keeps under names, with their KV."""

from __future__ import annotations

import contextlib
import enum
import json as json_text
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.admin_client import show_pairs, show_table, when
from gateway.cli.console import format_bytes, messages, print_error, print_json
from gateway.cli.exits import Exit
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL, json_pairs, program_of

if TYPE_CHECKING:
    from gateway.cli.api_client import ApiClient

app = typer.Typer(no_args_is_help=True, help="Histories that a server keeps under names, with their KV.")

COMPUTE_S = 3600.0
"""Longest wait for a server that computes a history."""


class VisibilityChoice(enum.StrEnum):
    """Who may use a prefix."""

    PRIVATE = "private"
    TENANT = "tenant"
    SHARED = "shared"


class TtlModeChoice(enum.StrEnum):
    """Whether the time of a prefix begins anew with every use."""

    SLIDING = "sliding"
    FIXED = "fixed"


UrlOption = Annotated[str, typer.Option("--url", envvar="WYE_URL", help="Server to talk to.")]
KeyOption = Annotated[str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key to send.")]
PrefixArgument = Annotated[str, typer.Argument(help="Id of the prefix, or its name for the newest version.")]
TtlOption = Annotated[float | None, typer.Option("--ttl", help="Seconds that it is kept.")]
TtlModeOption = Annotated[TtlModeChoice | None, typer.Option("--ttl-mode", help="Whether uses begin them anew.")]
VisibilityOption = Annotated[VisibilityChoice | None, typer.Option("--visibility", help="Who may use it.")]
AllowOption = Annotated[
    list[str] | None, typer.Option("--allow", help="Tenant, key id or program digest that alone may; may be repeated.")
]
MetadataOption = Annotated[list[str] | None, typer.Option("--metadata", help="NAME=TEXT; may be repeated.")]


@app.command("list")
def list_prefixes(
    name: Annotated[str | None, typer.Option("--name", help="Versions of this name alone.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Those of this model alone.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """List all versions of all prefixes, the newest first."""
    asked = {key: value for key, value in (("name", name), ("model", model)) if value is not None}
    with _client(url, api_key) as client:
        found = list(client.items("", **asked))
    if json:
        print_json(found)
        return
    if not found:
        messages().print("no prefixes")
        return
    titles = ("prefix", "name", "version", "status", "tokens", "memory", "uses", "until")
    show_table(titles, [_row(one) for one in found])


@app.command()
def show(
    prefix: PrefixArgument,
    at: Annotated[int | None, typer.Option("--at", min=1, help="Version of the name instead of the newest.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Show what a prefix is, who may use it, and what it has cost."""
    with _client(url, api_key) as client:
        _tell(client.send("GET", _path(prefix), **({} if at is None else {"at": at})), json)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Its name; one that is taken is given to the new version.")],
    system: Annotated[str | None, typer.Option("--system", help="A system message to keep.")] = None,
    conversation: Annotated[
        str | None, typer.Option("--messages", help="File of a JSON list of messages instead; - is standard input.")
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="File of a plain text instead; - is standard input.")
    ] = None,
    response: Annotated[
        str | None, typer.Option("--response", help="Id of a stored response instead, with its conversation.")
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            help="File of a program instead, - for standard input, NAME, or NAME@VERSION: the context that it "
            "returns, or exports under the name.",
        ),
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", help="NAME=VALUE for the program, JSON or text; may be repeated.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model that computes it.")] = None,
    ttl: TtlOption = None,
    ttl_mode: TtlModeOption = None,
    visibility: VisibilityOption = None,
    allow: AllowOption = None,
    metadata: MetadataOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Compute a history and keep it under a name. Prints its id."""
    if arg and program is None:
        raise typer.BadParameter("it goes with --program", param_hint="--arg")
    body = {"name": name, "model": model, **_content(system, conversation, text, response, program)}
    if arg:
        body["program"]["args"] = json_pairs(arg, "--arg")
    body |= {"ttl": ttl, "ttl_mode": ttl_mode, "visibility": visibility, "allow": allow}
    body["metadata"] = _pairs(metadata)
    with _client(url, api_key, timeout_s=COMPUTE_S) as client:
        made = client.send("POST", "", _without_none(body))
    if json:
        print_json(made)
    else:
        print(made["id"])


@app.command()
def update(
    prefix: PrefixArgument,
    ttl: TtlOption = None,
    ttl_mode: TtlModeOption = None,
    visibility: VisibilityOption = None,
    allow: AllowOption = None,
    allow_all: Annotated[bool, typer.Option("--allow-all", help="Whoever it is visible to may use it.")] = False,
    metadata: MetadataOption = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Change until when a prefix is kept, who may use it, or its metadata: what is not named stays as it is."""
    if allow and allow_all:
        raise typer.BadParameter("it does not go with --allow", param_hint="--allow-all")
    body = _without_none({"ttl": ttl, "ttl_mode": ttl_mode, "visibility": visibility, "metadata": _pairs(metadata)})
    if allow or allow_all:
        body["allow"] = allow or []
    if not body:
        raise typer.BadParameter("say what is to be otherwise", param_hint="--ttl")
    with _client(url, api_key) as client:
        _tell(client.send("PATCH", _path(prefix), body), json)


@app.command()
def warm(
    prefix: PrefixArgument, url: UrlOption = DEFAULT_URL, api_key: KeyOption = "", json: JsonOption = False
) -> None:
    """Have the KV of a prefix computed and kept, if it is cold."""
    with _client(url, api_key, timeout_s=COMPUTE_S) as client:
        _say(client.send("POST", f"{_path(prefix)}/warm"), json)


@app.command()
def evict(
    prefix: PrefixArgument, url: UrlOption = DEFAULT_URL, api_key: KeyOption = "", json: JsonOption = False
) -> None:
    """Let go of the KV of a prefix, which costs nothing from then on, and keep the prefix."""
    with _client(url, api_key) as client:
        _say(client.send("POST", f"{_path(prefix)}/evict"), json)


@app.command()
def delete(
    prefix: PrefixArgument, url: UrlOption = DEFAULT_URL, api_key: KeyOption = "", json: JsonOption = False
) -> None:
    """Forget a prefix; its name is free at once."""
    with _client(url, api_key) as client:
        gone = client.send("DELETE", _path(prefix))
    if json:
        print_json(gone)
    else:
        charged = f"{gone['charged_kib_seconds']:.0f}"
        messages().print(f"{gone['id']}: deleted, {charged} KiB seconds charged", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _client(url: str, api_key: str, timeout_s: float = 30.0) -> Iterator[ApiClient]:
    """Talks to the server; a request that failed ends the command with its reason."""
    # Here: with what it imports, commands that talk to nobody would start later.
    from gateway.cli.api_client import ApiClient, RequestFailed

    try:
        yield ApiClient(url, api_key, "/v1/prefixes", timeout_s)
    except RequestFailed as error:
        print_error(error.message)
        raise typer.Exit(Exit.USAGE if error.status == 400 else error.code) from None


def _path(prefix: str) -> str:
    if not prefix.strip("/"):
        raise typer.BadParameter("it is empty", param_hint="prefix")
    return f"/{quote(prefix, safe='/')}"


def _content(
    system: str | None, conversation: str | None, text: str | None, response: str | None, program: str | None
) -> dict[str, Any]:
    """What is to be kept, as the request has it."""
    if sum(one is not None for one in (system, conversation, text, response, program)) != 1:
        options = "--system, --messages, --text, --response or --program"
        raise typer.BadParameter("one of them is needed", param_hint=options)
    if program is not None:
        return {"program": program_of(program)}
    if response is not None:
        return {"response_id": response}
    if system is not None:
        return {"messages": [{"role": "system", "content": system}]}
    if text is not None:
        return {"input": _read(text, "--text")}
    try:
        found = json_text.loads(_read(str(conversation), "--messages"))
    except ValueError as error:
        raise typer.BadParameter(f"it is no JSON: {error}", param_hint="--messages") from None
    return {"messages": found["messages"] if isinstance(found, dict) and "messages" in found else found}


def _read(path: str, option: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise typer.BadParameter("it is no UTF-8 text", param_hint=option) from None


def _pairs(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=TEXT", param_hint="--metadata")
        pairs[name] = value
    return pairs


def _without_none(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    memory = format_bytes(one["bytes"]) if one["bytes"] else None
    return (
        one["id"],
        one["name"],
        one["version"],
        one["status"],
        one["tokens"],
        memory,
        one["usage"]["imports"],
        when(one["expires_at"]),
    )


def _tell(one: dict[str, Any], json: bool) -> None:
    """All of a prefix."""
    if json:
        print_json(one)
        return
    usage = one["usage"]
    show_pairs(
        {
            "id": one["id"],
            "name": f"{one['name']}, version {one['version']}",
            "model": one["model"],
            "status": one["status"],
            "tokens": one["tokens"],
            "memory": format_bytes(one["bytes"]),
            "kept": f"{one['ttl']:g} s ({one['ttl_mode']}), until {when(one['expires_at'])}",
            "used": f"{usage['imports']} times, last {when(one['last_used_at'])}",
            "visibility": one["visibility"],
            "allow": ", ".join(one["allow"]) or None,
            "metadata": ", ".join(f"{name}={value}" for name, value in one["metadata"].items()) or None,
            "charged": f"{usage['charged_kib_seconds']:.0f} KiB seconds",
        }
    )


def _say(one: dict[str, Any], json: bool) -> None:
    """What has become of a prefix."""
    if json:
        print_json(one)
    else:
        messages().print(f"{one['id']}: {one['status']}", markup=False, soft_wrap=True)
