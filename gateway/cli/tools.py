"""`wye tools`: register, list, test and remove what a server calls for models and programs."""

from __future__ import annotations

import enum
import json as json_text
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from gateway.cli.console import messages, output, print_error, print_json, print_warning
from gateway.cli.exits import Exit
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL
from gateway.cli.serve import read_settings

app = typer.Typer(no_args_is_help=True, help="Register, list, test and remove tools that a server calls.")

T = TypeVar("T")

CALL_S = 660.0
"""Longest wait for an answer: calls of tools may take ten minutes."""

UrlOption = Annotated[str, typer.Option("--url", envvar="WYE_URL", help="Server to talk to.")]
KeyOption = Annotated[str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key to send.")]


class EffectChoice(enum.StrEnum):
    """What a call does to the world."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    ONCE = "once"
    IRREVERSIBLE = "irreversible"


class ApprovalChoice(enum.StrEnum):
    """Whether a person is asked before each call."""

    ALWAYS = "always"
    NEVER = "never"


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the tool or label of the server; or a JSON or TOML file.")],
    server: Annotated[str | None, typer.Option("--server", help="Address of an MCP server.")] = None,
    http: Annotated[str | None, typer.Option("--http", help="Address of an HTTP tool; {city} is an argument.")] = None,
    script: Annotated[Path | None, typer.Option("--script", help="File of a program.", dir_okay=False)] = None,
    method: Annotated[str, typer.Option("--method", help="Of an HTTP tool.")] = "POST",
    description: Annotated[str, typer.Option("--description", help="Tells models what the tool is for.")] = "",
    parameters: Annotated[str, typer.Option("--parameters", help="JSON Schema of its arguments.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", help="NAME=VALUE or NAME=env:VARIABLE.")] = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", help="Only this tool of a server; repeat it.")] = None,
    effect: Annotated[EffectChoice, typer.Option("--effect", help="What a call does.")] = EffectChoice.ONCE,
    approval: Annotated[ApprovalChoice | None, typer.Option("--approval", help="Ask a person before calls.")] = None,
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, max=600, help="Seconds of a call.")] = 30.0,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Register a tool or an MCP server, in place of an own one of the same name."""
    places = {"--server": server, "--http": http, "--script": script}
    given = [option for option, value in places.items() if value is not None]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other")
    if not given:
        descriptions = _read_file(Path(name))
    else:
        common: dict[str, Any] = {"effect": effect.value, "timeout_s": timeout_s}
        common |= {} if approval is None else {"require_approval": approval.value}
        if server is not None:
            one = {"label": name, "url": server, "headers": _headers(header)}
            one |= {} if allow is None else {"allowed_tools": allow}
        else:
            one = {"name": name, "description": description, **_target(http, method, script, header)}
            one |= {} if not parameters else {"parameters": _object(parameters, "--parameters")}
        descriptions = [one | common]
    made = _asked(url, api_key, lambda client: [client.send("POST", "", one) for one in descriptions])
    if json:
        print_json(made)
        return
    for entry in made:
        messages().print(f"{entry['id']}: registered ({entry['kind']})", markup=False, soft_wrap=True)


@app.command("list")
def list_tools(url: UrlOption = DEFAULT_URL, api_key: KeyOption = "", json: JsonOption = False) -> None:
    """List tools and servers: one's own, and the operator's."""
    found = _asked(url, api_key, lambda client: list(client.items("")))
    if json:
        print_json(found)
        return
    if not found:
        messages().print("no tools")
        return
    from rich.table import Table

    table = Table("name", "kind", "effect", "owner", "description", box=None, pad_edge=False)
    for one in found:
        summary = str(one["description"]).splitlines()[0] if one["description"] else ""
        table.add_row(one["id"], one["kind"], one["effect"], one["owned_by"], summary)
    output().print(table)


@app.command("test")
def try_tool(
    name: Annotated[str, typer.Argument(help="NAME, or SERVER to list its tools, or SERVER/TOOL.")],
    arg: Annotated[list[str] | None, typer.Option("--arg", help="NAME=VALUE, JSON or text; may be repeated.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Call a tool, really; or list the tools of a server."""
    own, _, tool = name.partition("/")
    body: dict[str, Any] = {"arguments": _pairs(arg), **({"tool": tool} if tool else {})}
    tested = _asked(url, api_key, lambda client: client.send("POST", f"/{own}/test", body))
    if json:
        print_json(tested)
    elif tested["tools"] is not None:
        for one in tested["tools"]:
            output().print(f"{one['name']} ({one['effect']}): {one['description']}", markup=False, soft_wrap=True)
    else:
        output().print(tested["output"], markup=False, soft_wrap=True)
        cut = ", cut" if tested["is_cut"] else ""
        messages().print(f"{tested['ms']:.0f} ms{cut}", style="dim", markup=False)
    if tested["is_error"]:
        print_error("the tool says that it did not work")
        raise typer.Exit(Exit.FAILURE)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Of a tool or server that one has registered.")],
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
) -> None:
    """Forget a tool or a server."""
    _asked(url, api_key, lambda client: client.send("DELETE", f"/{name}"))
    messages().print(f"{name}: removed", markup=False, soft_wrap=True)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="JSON or TOML, as WYE_TOOLS_FILE names one.", dir_okay=False)],
    json: JsonOption = False,
) -> None:
    """Say what is wrong with an operator's file of tools, and what of it cannot work here, without a server."""
    from extensions.tools.egress import EgressPolicy
    from gateway.tools.file import ToolsFileError, load_tools
    from gateway.tools.reach import reach_warnings

    settings = read_settings()
    try:
        found = load_tools(file, os.environ)
    except ToolsFileError as error:
        if json:
            print_json({"valid": False, "message": str(error), "tools": [], "warnings": []})
        else:
            print_error(str(error))
        raise typer.Exit(Exit.FAILURE) from None
    egress = EgressPolicy.read(settings.tool_hosts, settings.tool_networks)
    warnings = reach_warnings(found.values(), egress)
    if json:
        print_json({"valid": True, "message": None, "tools": sorted(found), "warnings": warnings})
        return
    messages().print(f"{file} is right: {', '.join(sorted(found)) or 'no tools'}", markup=False, soft_wrap=True)
    for line in warnings:
        print_warning(line)


def _asked(url: str, api_key: str, ask: Callable[[Any], T]) -> T:
    from gateway.cli.api_client import ApiClient, RequestFailed

    try:
        return ask(ApiClient(url, api_key, "/v1/tools", CALL_S))
    except RequestFailed as error:
        print_error(error.message)
        raise typer.Exit(error.code) from None


def _read_file(path: Path) -> list[dict[str, Any]]:
    import tomllib

    if not path.is_file():
        raise typer.BadParameter(f"{path} is no file; say --server, --http or --script", param_hint="name")
    try:
        text = path.read_text("utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else json_text.loads(text)
    except (ValueError, RecursionError) as error:
        _bad_file(path, str(error))
    if not isinstance(content, dict):
        _bad_file(path, "it must be an object")
    listed = [*content.get("tools", ()), *content.get("servers", ())] if _is_list(content) else [content]
    if not listed or not all(isinstance(one, dict) for one in listed):
        _bad_file(path, "it describes no tools")
    return listed


def _is_list(content: dict[str, Any]) -> bool:
    return bool(content) and content.keys() <= {"tools", "servers"}


def _bad_file(path: Path, reason: str) -> NoReturn:
    raise typer.BadParameter(f"{path}: {reason}", param_hint="name")


def _target(http: str | None, method: str, script: Path | None, header: list[str] | None) -> dict[str, Any]:
    if http is not None:
        return {"kind": "http", "http": {"url": http, "method": method.upper(), "headers": _headers(header)}}
    assert script is not None
    if header:
        raise typer.BadParameter("programs are sent no headers", param_hint="--header")
    try:
        return {"kind": "script", "script": {"source": script.read_text("utf-8")}}
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{script}: {error}", param_hint="--script") from None


def _headers(given: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter("a header is NAME=VALUE", param_hint="--header")
        if value.startswith("env:"):
            # So that a secret need not stand in the history of a shell.
            variable = value.removeprefix("env:")
            value = os.environ.get(variable, "")
            if not value:
                raise typer.BadParameter(f"{name}: the environment has no {variable!r}", param_hint="--header")
        found[name] = value
    return found


def _object(text: str, option: str) -> dict[str, Any]:
    try:
        found = json_text.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"it is no JSON: {error}", param_hint=option) from None
    if not isinstance(found, dict):
        raise typer.BadParameter("it must be a JSON object", param_hint=option)
    return found


def _pairs(given: list[str] | None) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--arg")
        try:
            pairs[name] = json_text.loads(value)
        except ValueError:
            pairs[name] = value
    return pairs
