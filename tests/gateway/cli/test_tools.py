"""`wye tools`: against a real server, and an operator's file without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.text.model import TextModel
from gateway.cli.exits import Exit
from tests.fakes import RunningServer, ScriptedEngine, running_server

SCRIPT = "async def main(request, lm):\n    return {'twice': 2 * request.args['n']}\n"
NUMBER = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str) -> Iterator[RunningServer]:
    with running_server(engine, model, api_keys=("key",), redis_url=redis_url) as server:
        yield server


def tools(server: RunningServer | None, *args: str, key: str = "key", **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "OPENAI_API_KEY": key, "TOKEN": "s3cret", "COLUMNS": "200", **more}
    if server is not None:
        environment["WYE_URL"] = server.url
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "tools", *args],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )


def test_a_tool_is_added_listed_tested_and_removed(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "double.py"
    path.write_text(SCRIPT)
    added = tools(server, "add", "double", "--script", str(path), "--parameters", NUMBER, "--effect", "pure")
    assert added.returncode == 0, added.stderr
    assert "double: registered (script)" in added.stderr
    assert tools(server, "list").stdout.splitlines()[1].split() == ["double", "script", "pure", "user"]
    tested = tools(server, "test", "double", "--arg", "n=21")
    assert (tested.returncode, tested.stdout) == (0, '{"twice": 42}\n'), tested.stderr
    wrong = tools(server, "test", "double", "--arg", "n=many")
    assert wrong.returncode == Exit.FAILURE
    assert "n" in wrong.stderr
    assert tools(server, "remove", "double").returncode == 0
    assert json.loads(tools(server, "list", "--json").stdout) == []
    gone = tools(server, "test", "double")
    assert (gone.returncode, gone.stdout) == (Exit.NOT_FOUND, "")


def test_a_secret_is_taken_from_the_environment_and_shown_to_nobody(server: RunningServer) -> None:
    place = ("--http", "https://api.example.com/{city}", "--header", "Authorization=env:TOKEN")
    city = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    made = tools(server, "add", "weather", *place, "--method", "get", "--parameters", city, "--json")
    assert made.returncode == 0, made.stderr
    (shown,) = json.loads(made.stdout)
    assert shown["http"] == {
        "url": "https://api.example.com/{city}",
        "method": "GET",
        "headers": {"Authorization": "***"},
    }
    assert "s3cret" not in made.stdout + tools(server, "list", "--json").stdout
    missing = tools(server, "add", "x", "--http", "https://a.example/", "--header", "A=env:NOT_THERE")
    assert missing.returncode == Exit.USAGE
    assert "no 'NOT_THERE'" in missing.stderr


def test_a_file_adds_all_that_it_describes(server: RunningServer, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[tools]]\nname = "one"\nkind = "http"\nhttp = { url = "https://a.example/" }\n\n'
        '[[servers]]\nlabel = "two"\nurl = "https://a.example/mcp"\n'
    )
    added = tools(server, "add", str(path))
    assert added.returncode == 0, added.stderr
    assert [one["id"] for one in json.loads(tools(server, "list", "--json").stdout)] == ["one", "two"]
    refused = tools(server, "add", "wye", "--server", "https://a.example/mcp")
    assert refused.returncode == Exit.FAILURE
    assert "wye" in refused.stderr


def test_who_has_no_key_or_no_server_is_told(server: RunningServer) -> None:
    assert tools(server, "list", key="wrong").returncode == Exit.ACCESS_DENIED
    assert tools(None, "list", "--url", "http://127.0.0.1:9").returncode == Exit.UNAVAILABLE
    assert tools(None, "add", "nothing").returncode == Exit.USAGE
    assert tools(None, "add", "x", "--http", "https://a.example", "--server", "https://a.example").returncode == (
        Exit.USAGE
    )


def test_an_operators_file_is_checked_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text('{"servers": [{"label": "files", "command": ["files-server"], "env": {"TOKEN": "env:TOKEN"}}]}')
    right = tools(None, "check", str(path))
    assert right.returncode == 0, right.stderr
    assert "files" in right.stderr
    path.write_text('{"servers": [{"label": "files", "command": []}]}')
    wrong = tools(None, "check", str(path), "--json")
    assert wrong.returncode == Exit.FAILURE
    assert "servers[0]" in json.loads(wrong.stdout)["message"]


def test_a_check_warns_of_what_cannot_work_here(tmp_path: Path) -> None:
    path = tmp_path / "tools.toml"
    path.write_text(
        '[[tools]]\nname = "weather"\nkind = "http"\nhttp = { url = "http://10.0.0.7/weather/{city}?q={city}" }\n'
        'parameters = { type = "object", properties = { city = { type = "string" } }, required = ["city"] }\n\n'
        '[[servers]]\nlabel = "files"\ncommand = ["no-such-files-server"]\n'
    )
    outside = "weather: 10.0.0.7 is no public address and not in a network of WYE_TOOL_NETWORKS"
    missing = "files: the command 'no-such-files-server' is not found on the PATH"
    checked = tools(None, "check", str(path))
    assert checked.returncode == 0, checked.stderr
    assert checked.stderr.splitlines()[1:] == [f"warning: {outside}", f"warning: {missing}"]
    assert json.loads(tools(None, "check", str(path), "--json").stdout)["warnings"] == [outside, missing]
    allowed = tools(None, "check", str(path), "--json", WYE_TOOL_NETWORKS="10.0.0.0/24")
    assert json.loads(allowed.stdout)["warnings"] == [missing]
    assert tools(None, "check", str(path), WYE_TOOL_NETWORKS="everywhere").returncode == Exit.USAGE


def test_a_tool_that_may_not_be_reached_fails_and_no_key_is_to_blame(server: RunningServer) -> None:
    assert tools(server, "add", "inside", "--http", "https://10.0.0.7/").returncode == 0
    refused = tools(server, "test", "inside")
    assert (refused.returncode, refused.stdout) == (Exit.FAILURE, "")
    assert "10.0.0.7 is no public address" in refused.stderr
    assert "WYE_TOOL_NETWORKS" not in refused.stderr  # it is not for tools of tenants


def test_a_server_does_not_start_with_a_wrong_file(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text("{")
    started = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", "--port", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "WYE_TOOLS_FILE": str(path)},
        timeout=120,
        check=False,
    )
    assert started.returncode == Exit.USAGE
    assert "WYE_TOOLS_FILE" in started.stderr
