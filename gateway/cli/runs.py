"""`wye runs`: programs that run on their own on a server."""

from __future__ import annotations

import json as json_text
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from gateway.cli.admin_client import show_table
from gateway.cli.console import messages, output, print_error, print_json
from gateway.cli.exits import Exit
from gateway.cli.options import JsonOption
from gateway.cli.programs import DEFAULT_URL, json_pairs, program_of
from gateway.cli.showing import json_for, local_time, show_run

app = typer.Typer(no_args_is_help=True, help="Programs that run on their own on a server.")

T = TypeVar("T")

UrlOption = Annotated[str, typer.Option("--url", envvar="WYE_URL", help="Server to talk to.")]
KeyOption = Annotated[str, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Key to send.")]
RunArgument = Annotated[str, typer.Argument(help="Id of the run.")]


@app.command()
def start(
    program: Annotated[str, typer.Argument(help="File of a program, - for standard input, NAME, or NAME@VERSION.")],
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What the user says.")] = "",
    arg: Annotated[list[str] | None, typer.Option("--arg", help="NAME=VALUE, JSON or text; may be repeated.")] = None,
    limit: Annotated[list[str] | None, typer.Option("--limit", help="NAME=NUMBER; may be repeated.")] = None,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Start a program and leave it alone; prints the id of the run."""
    body: dict[str, Any] = {
        **program_of(program),
        "args": json_pairs(arg, "--arg"),
        "limits": json_pairs(limit, "--limit"),
    }
    if prompt:
        body["messages"] = [{"role": "user", "content": prompt}]
    run = _asked(url, api_key, lambda client: client.send("POST", "", body))
    if json:
        print_json(run)
    else:
        output().print(run["id"], markup=False, soft_wrap=True)


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option("--limit", min=1, max=100, help="Most runs.")] = 20,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """List runs, the newest first."""
    found = _asked(url, api_key, lambda client: client.send("GET", "", limit=limit))["data"]
    if json:
        print_json(found)
        return
    if not found:
        messages().print("no runs")
        return
    rows = []
    for run in found:
        program = run["program"]["name"] or run["program"]["digest"][:19]
        usage = run["usage"] or {}
        seconds = f"{usage['wall_s']:.1f}" if "wall_s" in usage else None
        rows.append((run["id"], run["status"], program, local_time(run["created_at"]), seconds))
    show_table(("run", "status", "program", "begun", "seconds"), rows)


@app.command()
def show(run_id: RunArgument, url: UrlOption = DEFAULT_URL, api_key: KeyOption = "", json: JsonOption = False) -> None:
    """Show how a run is, what it used and what it came to: its text last."""
    run = _asked(url, api_key, lambda client: client.send("GET", f"/{run_id}"))
    if json:
        print_json(run)
        return
    show_run(output(), run)
    if run["content"]:
        output().print(f"\n{run['content']}", markup=False, soft_wrap=True)


@app.command()
def events(
    run_id: RunArgument,
    after: Annotated[int, typer.Option("--after", min=-1, help="Begin behind the event of this number.")] = -1,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
    json: JsonOption = False,
) -> None:
    """Follow a run to its end: text to standard output, the rest to standard error; a lost connection is made again."""

    def follow(client: Any) -> dict[str, Any] | None:
        last = None
        for event in client.events(run_id, after):
            if json:
                print(json_text.dumps(event, ensure_ascii=False), flush=True)
            else:
                _tell(event)
            last = event.get("run")
        return last

    run = _asked(url, api_key, follow)
    if run is not None and not json:
        output().print()
        show_run(messages(), run)
    if run is not None and run["status"] != "completed":
        raise typer.Exit(Exit.FAILURE)


@app.command("input")
def send_input(
    run_id: RunArgument,
    value: Annotated[str, typer.Argument(help="What to say: JSON, or text.")],
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = "",
) -> None:
    """Say something to a program that runs: what its next `lm.receive` returns."""
    body = {"input": _value(value)}
    sent = _asked(url, api_key, lambda client: client.send("POST", f"/{run_id}/input", body))
    messages().print(f"input {sent['number']}", markup=False)


@app.command()
def cancel(run_id: RunArgument, url: UrlOption = DEFAULT_URL, api_key: KeyOption = "") -> None:
    """End a run; one that is over stays as it is."""
    run = _asked(url, api_key, lambda client: client.send("POST", f"/{run_id}/cancel"))
    messages().print(f"{run['id']}: {run['status']}", markup=False, soft_wrap=True)


@app.command()
def remove(run_id: RunArgument, url: UrlOption = DEFAULT_URL, api_key: KeyOption = "") -> None:
    """Forget a run with its events; one that goes on is ended."""
    _asked(url, api_key, lambda client: client.send("DELETE", f"/{run_id}"))
    messages().print(f"{run_id}: removed", markup=False, soft_wrap=True)


def _asked(url: str, api_key: str, ask: Callable[[Any], T]) -> T:
    from gateway.cli.api_client import RequestFailed
    from gateway.cli.run_client import RunClient

    try:
        return ask(RunClient(url, api_key))
    except RequestFailed as error:
        print_error(error.message)
        raise typer.Exit(error.code) from None


def _value(text: str) -> Any:
    try:
        return json_text.loads(text)
    except ValueError:
        return text


def _tell(event: dict[str, Any]) -> None:
    if "delta" in event:
        print(event["delta"], end="", flush=True)
        return
    sys.stdout.flush()
    if "event" in event:
        console = messages()
        told = json_for(console, event["event"]["data"])
        console.print(f"[{event['event']['type']}] {told}", style="dim", markup=False, soft_wrap=True)
    elif "log" in event:
        messages().print(event["log"].rstrip("\n"), style="dim", markup=False, soft_wrap=True)
    elif "count" in event:
        messages().print(f"{event['count']} events are no longer kept", style="dim", markup=False)
