"""`wye runs`: programs that run on their own on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine.text.model import TextModel
from gateway.cli import app
from gateway.cli.exits import Exit
from tests.fakes import RunningServer, ScriptedEngine, running_server

ASKS = """
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
    assert "ZeroDivisionError" in followed.stderr
    run_id = runs(server, "start", "-", text=ASKS, key="key").stdout.strip()
    assert f"{run_id}: cancelled" in runs(server, "cancel", run_id).stderr
    assert runs(server, "events", run_id).exit_code == Exit.FAILURE


def test_what_is_wrong_is_told_in_one_line(server: RunningServer) -> None:
    assert runs(server, "show", "run_none").exit_code == Exit.NOT_FOUND
    assert runs(server, "list", key="other").exit_code == Exit.ACCESS_DENIED
    assert runs(server, "start", "no_such_program").exit_code == Exit.NOT_FOUND
    assert runs(server, "list", "--url", "http://127.0.0.1:1").exit_code == Exit.UNAVAILABLE
    assert runs(server, "start", "x", "--arg", "n").exit_code == Exit.USAGE
