"""`wye run`, `wye check`, `wye new`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.text.model import TextModel
from gateway.cli import app
from gateway.cli.exits import Exit
from tests.fakes import RunningServer, ScriptedEngine, running_server

SCRIPT = """
EXTENSION = {"name": "teller", "version": "1.0.0"}

async def main(request, lm):
    print("note to self")
    await lm.emit_event("place", {"at": 1})
    await lm.emit("hello ")
    return request.messages[-1]["content"] + " " + str(request.args)
"""


def run(*args: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *args],
        capture_output=True,
        text=True,
        input=text,
        env={**os.environ, "NO_COLOR": "1"},
        timeout=120,
        check=False,
    )


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel) -> Iterator[RunningServer]:
    with running_server(engine, model, api_keys=("key",)) as server:
        yield server


def test_a_new_program_can_run_as_it_is(tmp_path: Path) -> None:
    assert run("new", "first_try", "--directory", str(tmp_path)).returncode == 0
    path = tmp_path / "first_try.py"
    result = run("check", str(path))
    assert result.returncode == 0, result.stdout
    assert "first_try 0.1.0 can run" in result.stderr
    again = run("new", "first_try", "--directory", str(tmp_path))
    assert again.returncode == Exit.FAILURE
    assert "there already" in again.stderr


@pytest.mark.parametrize("name", ["Big", "a-b", "1st", "../x", ""])
def test_a_bad_name_is_wrong_usage(name: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["new", name, "--directory", str(tmp_path)])
    assert result.exit_code == Exit.USAGE
    assert list(tmp_path.iterdir()) == []


def test_problems_are_told_with_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("async def main(request, lm):\n    return request.nam\n")
    result = run("check", str(path))
    assert result.returncode == Exit.FAILURE
    assert result.stdout.startswith(f"{path}:2:12: error: ")
    told = json.loads(run("check", str(path), "--json").stdout)
    assert told["valid"] is False
    assert (told["diagnostics"][0]["line"], told["diagnostics"][0]["column"]) == (2, 12)


def test_a_capability_that_no_server_has_is_told_with_its_place() -> None:
    needy = SCRIPT.replace('"1.0.0"', '"1.0.0", "capabilities": ["attention", "wings"]')
    place = (2, needy.split("\n")[1].index('"wings"') + 1, "capability_missing")
    told = json.loads(run("check", "-", "--json", text=needy).stdout)
    assert [(one["line"], one["column"], one["rule"]) for one in told["diagnostics"]] == [place]


def test_a_program_is_read_from_standard_input_too() -> None:
    assert run("check", "-", text=SCRIPT).returncode == 0


def test_a_run_shows_text_apart_from_all_else(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "teller.py"
    path.write_text(SCRIPT)
    common = ("--url", server.url, "--api-key", "key", "--prompt", "you", "--arg", "n=3", "--arg", "s=text")
    result = run("run", str(path), *common)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "hello you {'n': 3, 's': 'text'}\n"
    assert "note to self" in result.stderr
    assert '[place] {"at": 1}' in result.stderr
    assert "fused" in result.stderr
    whole = json.loads(run("run", "-", *common, "--json", text=SCRIPT).stdout)
    assert whole["content"] == result.stdout.rstrip("\n")
    assert whole["extension"]["logs"] == "note to self\n"


def test_a_result_without_text_is_what_a_pipe_gets_as_one_line(server: RunningServer) -> None:
    common = ("run", "-", "--url", server.url, "--api-key", "key")
    result = run(*common, text="async def main(request, lm):\n    return {'a': [1, 2], 'é': None}\n")
    assert (result.returncode, result.stdout) == (0, '{"a": [1, 2], "é": null}\n'), result.stderr
    result = run(*common, text="async def main(request, lm):\n    await lm.emit('text')\n    return {'a': 1}\n")
    assert (result.returncode, result.stdout) == (0, "text\n"), result.stderr
    assert 'result: {"a": 1}' in result.stderr


FAILURES = {
    "an exception": ("async def main(request, lm):\n    return 1 // len(request.tools)\n", "line 2, in main"),
    "a program that cannot run": ("async def main(request, lm):\n    return lm.x\n", "line 2, column 12"),
}


@pytest.mark.parametrize(("source", "told"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_is_told_with_the_lines_of_the_script(
    server: RunningServer, tmp_path: Path, source: str, told: str
) -> None:
    path = tmp_path / "x.py"
    path.write_text(source)
    result = run("run", str(path), "--url", server.url, "--api-key", "key")
    assert result.returncode == Exit.FAILURE
    assert told in result.stderr
    assert "error:" in result.stderr


def test_what_the_server_refuses_is_told(server: RunningServer) -> None:
    result = run("run", "no_such_program", "--url", server.url, "--api-key", "key")
    assert (result.returncode, "no program 'no_such_program'" in result.stderr) == (Exit.FAILURE, True)
    result = run("run", "no_such_program", "--url", server.url, "--api-key", "wrong")
    assert (result.returncode, "API key" in result.stderr) == (Exit.FAILURE, True)


def test_a_server_that_is_not_there_is_told_apart() -> None:
    result = run("run", "x", "--url", "http://127.0.0.1:9")
    assert result.returncode == Exit.UNAVAILABLE
    assert "does not answer" in result.stderr
    assert CliRunner().invoke(app, ["run", "x", "--arg", "n"]).exit_code == Exit.USAGE


def test_a_run_shows_its_branches_generations_and_kv(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "branches.py"
    path.write_text(
        "async def main(request, lm):\n"
        "    first, second = await (await lm.context(request.messages)).fork(2)\n"
        "    await first.generate(max_tokens=3)\n"
        "    return 'done'\n"
    )
    result = run("run", str(path), "--url", server.url, "--api-key", "key", "--prompt", "hi")
    assert result.returncode == 0, result.stderr
    assert "context 3 is a fork of 1" in result.stderr
    assert "context 2: 3 tokens generated" in result.stderr
    assert "KV up to" in result.stderr
    assert result.stdout.strip() == "done"
