"""How commands show what programs came to: JSON, what they used, and runs with everything that is known of them."""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_MIB = 2**20
_DIGEST_CHARS = 19


def json_for(console: Console, value: Any) -> str:
    """A value as JSON: over several lines on a terminal, on one elsewhere, so that lines of a pipe are values."""
    return json.dumps(value, indent=2 if console.is_terminal else None, ensure_ascii=False)


def used_tokens(usage: dict[str, Any]) -> str:
    """Tokens that a program used."""
    prompt, cached = usage.get("prompt_tokens", 0), usage.get("cached_tokens", 0)
    return f"{prompt} prompt tokens ({cached} cached), {usage.get('completion_tokens', 0)} generated"


def used_kv(usage: dict[str, Any]) -> str:
    """KV that a program held, over time."""
    return f"{usage.get('kv_byte_seconds', 0) / _MIB:.1f} MiB·s"


def show_run(console: Console, run: dict[str, Any]) -> None:
    """All that is known of a run, a line each; what does not hold for it is left out."""
    program, usage = run["program"], run["usage"]
    name = " ".join(filter(None, (program["name"], program["version"])))
    digest = program["digest"][:_DIGEST_CHARS]
    path, reason = run["exec_path"], run["exec_reason"]
    told = {
        "run": run["id"],
        "status": run["status"],
        "program": f"{name} ({digest})" if name else digest,
        "tenant": run.get("tenant"),
        "model": run["model"],
        "begun": local_time(run["created_at"]),
        "ended": None if run["ended_at"] is None else local_time(run["ended_at"]),
        "tokens": None if usage is None else used_tokens(usage),
        "KV": None if usage is None else used_kv(usage),
        "calls": None if usage is None else _calls(usage),
        "time": None if usage is None else f"{usage['wall_s']:.2f} s",
        "path": f"{path} ({reason})" if path and reason else path,
        "events": run["last_sequence_number"] + 1,
        "lives": run["lives"] if run["lives"] > 1 else None,
        "goes on": _cannot_go_on(run),
        "error": None if run["error"] is None else _error(run["error"]),
        "result": None if run["result"] is None else json_for(console, run["result"]),
    }
    shown = {title: str(value) for title, value in told.items() if value is not None}
    width = max(map(len, shown))
    for title, value in shown.items():
        # Values of several lines stand under the first one.
        lines = value.rstrip("\n").replace("\n", "\n" + " " * (width + 2))
        console.print(f"{title:<{width}}  {lines}", markup=False, soft_wrap=True)


def local_time(unix_s: int) -> str:
    """A time for people, where they are."""
    return datetime.datetime.fromtimestamp(unix_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _calls(usage: dict[str, Any]) -> str:
    kinds = {"tool_calls": "of tools", "http_calls": "by HTTP", "children": "of programs"}
    further = [f"{usage[kind]} {name}" for kind, name in kinds.items() if usage.get(kind)]
    return ", ".join([str(usage["host_calls"]), *further])


def _cannot_go_on(run: dict[str, Any]) -> str | None:
    """What a stop or a crash now would mean, where that is not what one expects."""
    if run["status"] != "in_progress" or run["resumable"]:
        return None
    reason = run["not_resumable_reason"]
    return "not after a stop or a crash" + (f": {reason}" if reason else "")


def _error(error: dict[str, Any]) -> str:
    """Code, line, and the traceback where there is one."""
    line = error.get("line")
    where = f"line {line}: " if line else ""
    code = f"{error['code']}: " if error.get("code") else ""
    traceback = error.get("traceback")
    return f"{code}{where}{error.get('message')}" + (f"\n{traceback}" if traceback else "")
