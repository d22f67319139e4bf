"""`wye runs`: programs that run on their own on a real server."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from engine.text.model import TextModel
from gateway.cli import app
from gateway.cli.exits import Exit
from gateway.cli.showing import json_for, show_run
from tests.fakes import RunningServer, ScriptedEngine, running_server

ASKS = """
EXTENSION = {"name": "asking", "version": "1.2.0"}

async def main(request, lm):
    print("a note")
    await lm.emit("ready ")
    said = await lm.receive()
    await lm.emit_event("heard", said)
    await lm.emit("done")
    return {"said": said, "n": request.args["n"], "prompt": request.messages[-1]["content"]}
"""
FAILS = "async def main(request, lm):\n    return 1 / 0\n"


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str) -> Iterator[RunningServer]:
    with running_server(engine, model, api_keys=("key",), redis_url=redis_url) as server:
        yield server


def runs(server: RunningServer, *args: str, key: str = "key", text: str = "") -> Result:
    environment = {"NO_COLOR": "1", "OPENAI_API_KEY": key, "WYE_URL": server.url, "COLUMNS": "80"}
    return CliRunner(env=environment).invoke(app, ["runs", *args], input=text)


def test_a_run_is_started_listed_told_something_followed_and_removed(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "asks.py"
    path.write_text(ASKS)
    started = runs(server, "start", str(path), "--prompt", "hi", "--arg", "n=3")
    assert started.exit_code == 0, started.stderr
    run_id = started.stdout.strip()
    listed = runs(server, "list").stdout.splitlines()
    assert listed[1].split()[:2] == [run_id, "in_progress"]
    assert runs(server, "input", run_id, '{"a": 1}').stderr == "input 1\n"
    followed = runs(server, "events", run_id)
    assert (followed.exit_code, followed.stdout) == (0, "ready done\n")
    assert '[heard] {"a": 1}' in followed.stderr
    assert "a note" in followed.stderr
    shown = json.loads(runs(server, "show", run_id, "--json").stdout)
    assert shown["result"] == {"said": {"a": 1}, "n": 3, "prompt": "hi"}
    lines = runs(server, "show", run_id).stdout.splitlines()
    told = dict(line.split(maxsplit=1) for line in lines[: lines.index("")])
    assert told["status"] == "completed"
    assert told["program"].startswith("asking 1.2.0 (sha256:")
    assert json.loads(told["result"]) == shown["result"]
    assert told["tokens"] == "0 prompt tokens (0 cached), 0 generated"
    assert told["KV"] == "0.0 MiB·s"
    assert told["events"] == str(shown["last_sequence_number"] + 1)
    assert told.keys() >= {"run", "model", "begun", "ended", "time", "calls", "path"}
    assert "tenant" not in told  # there are none here
    assert lines[lines.index("") :] == ["", "ready done"]
    kinds = [json.loads(line)["type"] for line in runs(server, "events", run_id, "--json").stdout.splitlines()]
    assert (kinds[0], kinds[-1]) == ("run.started", "run.completed")
    assert runs(server, "remove", run_id).exit_code == 0
    gone = runs(server, "show", run_id)
    assert (gone.exit_code, gone.stdout) == (Exit.NOT_FOUND, "")
    assert json.loads(runs(server, "list", "--json").stdout) == []


def test_a_run_that_failed_or_was_cancelled_ends_the_command_so(server: RunningServer) -> None:
    run_id = runs(server, "start", "-", text=FAILS).stdout.strip()
    followed = runs(server, "events", run_id)
    assert followed.exit_code == Exit.FAILURE
    assert " extension_error: line 2: " in followed.stderr
    assert "ZeroDivisionError" in followed.stderr
    assert runs(server, "show", run_id).stdout.splitlines()[0].split() == ["run", run_id]
    run_id = runs(server, "start", "-", text=ASKS, key="key").stdout.strip()
    assert f"{run_id}: cancelled" in runs(server, "cancel", run_id).stderr
    assert runs(server, "events", run_id).exit_code == Exit.FAILURE


def test_what_is_wrong_is_told_in_one_line(server: RunningServer) -> None:
    assert runs(server, "show", "run_none").exit_code == Exit.NOT_FOUND
    assert runs(server, "list", key="other").exit_code == Exit.ACCESS_DENIED
    assert runs(server, "start", "no_such_program").exit_code == Exit.NOT_FOUND
    assert runs(server, "list", "--url", "http://127.0.0.1:1").exit_code == Exit.UNAVAILABLE
    assert runs(server, "start", "x", "--arg", "n").exit_code == Exit.USAGE


def test_json_is_for_people_on_a_terminal_and_a_line_in_a_pipe() -> None:
    value = {"a": [1, "é"]}
    assert json_for(Console(file=io.StringIO(), force_terminal=True), value) == json.dumps(
        value, indent=2, ensure_ascii=False
    )
    assert json_for(Console(file=io.StringIO()), value) == '{"a": [1, "é"]}'


def test_what_a_run_tells_stands_in_lines_that_can_be_read() -> None:
    run = {
        "id": "run_1", "status": "failed", "tenant": "proj_a", "model": "m", "created_at": 0, "ended_at": 1,
        "program": {"name": None, "version": None, "digest": "sha256:0123456789abcdef"},
        "exec_path": "host", "exec_reason": "it steps", "last_sequence_number": 4, "lives": 2, "resumable": False,
        "not_resumable_reason": None, "result": None,
        "error": {"code": "extension_error", "line": 3, "message": "ValueError: x", "traceback": "Traceback\n  y\n"},
        "usage": {
            "prompt_tokens": 12, "cached_tokens": 3, "completion_tokens": 40, "host_calls": 7, "tool_calls": 2,
            "wall_s": 1.5, "kv_byte_seconds": 3 * 2**20,
        },
    }  # fmt: skip
    file = io.StringIO()
    show_run(Console(file=file, width=200), run)
    lines = [line for line in file.getvalue().splitlines() if not line.startswith(("begun", "ended"))]
    assert lines == [
        "run      run_1",
        "status   failed",
        "program  sha256:0123456789ab",
        "tenant   proj_a",
        "model    m",
        "tokens   12 prompt tokens (3 cached), 40 generated",
        "KV       3.0 MiB·s",
        "calls    7, 2 of tools",
        "time     1.50 s",
        "path     host (it steps)",
        "events   5",
        "lives    2",
        "error    extension_error: line 3: ValueError: x",
        "         Traceback",
        "           y",
    ]
