"""What `wye run` does with a server: one streamed chat request, shown as it goes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import httpx

from gateway.cli.console import messages, output
from gateway.cli.showing import json_for, used_kv, used_tokens

_CONNECT_S = 5.0


class RunFailed(Exception):
    """The program did not come to its end.

    Attributes:
        message: One line for people.
        details: A traceback or a list of problems; may be empty.
        is_unreachable: No server answered.
    """

    def __init__(self, message: str, details: str = "", *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.is_unreachable = is_unreachable


def run(url: str, api_key: str, body: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Sends the request and shows its answer; `quiet` shows nothing.

    Returns:
        The text, and what the server says of the run.

    Raises:
        RunFailed: It was refused, failed on the way, or no server is there.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    timeout = httpx.Timeout(None, connect=_CONNECT_S)
    address = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
    try:
        with httpx.stream("POST", address, json=body, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                raise _failure(_error_of(response))
            return _follow(_events(response.iter_lines()), quiet=quiet)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RunFailed(f"{url} does not answer: {error}", is_unreachable=True) from None


def _events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def _follow(events: Iterator[dict[str, Any]], *, quiet: bool) -> dict[str, Any]:
    texts: list[str] = []
    done: dict[str, Any] = {}
    watch = _Watch()
    for event in events:
        if "error" in event:
            raise _failure(event["error"])
        extension = event.get("extension") or {}
        for choice in event.get("choices", ()):
            texts.append(choice["delta"].get("content") or "")
            if not quiet:
                print(texts[-1], end="", flush=True)
        if "trace" in extension:
            watch.note(extension["trace"])
        elif "event" in extension:
            _tell(quiet, f"[{extension['event']['type']}] {json_for(messages(), extension['event']['data'])}")
        elif "log" in extension:
            _tell(quiet, extension["log"].rstrip("\n"))
        elif extension:
            done = extension
        done |= {"usage_tokens": event["usage"]} if event.get("usage") else {}
    if not quiet:
        sys.stdout.flush()
        _show_result(done.get("result"), has_text=any(texts))
        _summarise(done, watch.most_bytes)
    return {"content": "".join(texts), "extension": done}


class _Watch:
    """Shows what a program does besides talking.

    Attributes:
        most_bytes: Of KV that it paid for at once.
    """

    def __init__(self) -> None:
        self.most_bytes = 0
        self._started: dict[str, float] = {}

    def note(self, one: dict[str, Any]) -> None:
        """Takes one note of the server; see `extensions.programs.trace`."""
        kind, at_ms = one["type"], one["at_ms"]
        if kind == "kv":
            self.most_bytes = max(self.most_bytes, one["bytes"])
        elif kind == "tool.start":
            self._started[one["call"]] = at_ms
            self._tell(at_ms, f"{one['name']} …")
        elif kind == "tool.end":
            took_ms = at_ms - self._started.pop(one["call"], at_ms)
            self._tell(at_ms, f"{one['name']} {'failed' if one['is_error'] else 'answered'} after {took_ms:.0f} ms")
        elif kind == "context.open" and one["parent"]:
            self._tell(at_ms, f"context {one['context']} is a fork of {one['parent']}, {one['tokens']} tokens")
        elif kind == "generate.end":
            self._tell(at_ms, f"context {one['context']}: {one['tokens']} tokens generated")

    def _tell(self, at_ms: float, text: str) -> None:
        _tell(quiet=False, line=f"{at_ms / 1000:8.3f} s  {text}")


def _tell(quiet: bool, line: str) -> None:
    if not quiet:
        sys.stdout.flush()
        messages().print(line, style="dim", markup=False, soft_wrap=True)


def _show_result(result: Any, *, has_text: bool) -> None:
    """What `main` returned besides text: where there is no text, that is what the program is run for."""
    if result is None:
        return
    if has_text:
        console = messages()
        console.print(f"\nresult: {json_for(console, result)}", markup=False, soft_wrap=True)
    else:
        print(json_for(output(), result), end="", flush=True)


def _summarise(done: dict[str, Any], most_bytes: int) -> None:
    usage = done.get("usage", {})
    path = done.get("exec_path", "?")
    reason = f" ({done['exec_reason']})" if done.get("exec_reason") else ""
    messages().print(
        f"\n{done.get('run_id', '')}: {path}{reason}; {used_tokens(usage)}, {usage.get('host_calls', 0)} calls, "
        f"KV up to {most_bytes / 2**20:.1f} MiB and {used_kv(usage)} in all, {usage.get('wall_s', 0.0):.2f} s",
        style="dim",
        markup=False,
        soft_wrap=True,
    )


def _error_of(response: httpx.Response) -> dict[str, Any]:
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = None
    return error if isinstance(error, dict) else {"message": f"the server answered {response.status_code}"}


def _failure(error: dict[str, Any]) -> RunFailed:
    problems = [
        f"line {one['line']}, column {one['column']}: {one['severity']}: {one['message']}"
        for one in error.get("diagnostics") or ()
    ]
    return RunFailed(str(error.get("message")), error.get("traceback") or "\n".join(problems))
