"""`wye prefixes` against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from engine.text.model import TextModel
from gateway.cli import app
from gateway.cli.exits import Exit
from tests.fakes import RunningServer, ScriptedEngine, running_server


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str) -> Iterator[RunningServer]:
    with running_server(engine, model, api_keys=("key",), redis_url=redis_url) as server:
        yield server


def prefixes(server: RunningServer, *args: str, key: str = "key", text: str = "") -> Result:
    environment = {"NO_COLOR": "1", "OPENAI_API_KEY": key, "WYE_URL": server.url, "COLUMNS": "80"}
    return CliRunner(env=environment).invoke(app, ["prefixes", *args], input=text)


def made(server: RunningServer, *args: str, text: str = "") -> str:
    result = prefixes(server, "create", *args, text=text)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


def test_a_prefix_is_made_listed_shown_changed_and_deleted(server: RunningServer, engine: ScriptedEngine) -> None:
    prefix_id = made(server, "docs/pirate", "--system", "Be a pirate.", "--ttl", "600", "--metadata", "team=a=b")
    assert prefix_id.startswith("pfx_")
    titles, row = prefixes(server, "list").stdout.splitlines()
    assert titles.split() == ["prefix", "name", "version", "status", "tokens", "memory", "uses", "until"]
    assert row.split()[:4] == [prefix_id, "docs/pirate", "1", "warm"]
    shown = prefixes(server, "show", "docs/pirate").stdout
    assert "600 s (sliding)" in shown
    assert "team=a=b" in shown
    changed = prefixes(
        server, "update", "docs/pirate", "--ttl", "60", "--visibility", "shared", "--allow", "x", "--json"
    )
    found = json.loads(changed.stdout)
    assert (found["ttl"], found["visibility"], found["allow"], found["metadata"]) == (
        60,
        "shared",
        ["x"],
        {"team": "a=b"},
    )
    assert "allow" in prefixes(server, "update", prefix_id, "--allow-all").stdout
    assert json.loads(prefixes(server, "show", prefix_id, "--json").stdout)["allow"] == []
    assert f"{prefix_id}: deleted" in prefixes(server, "delete", "docs/pirate").stderr
    assert engine.contexts.exports == {}
    assert prefixes(server, "list").stderr == "no prefixes\n"


def test_versions_are_listed_by_name_and_shown_by_number(server: RunningServer) -> None:
    first, second = made(server, "h", "--system", "One."), made(server, "h", "--system", "Two.")
    made(server, "g", "--system", "Three.")
    listed = json.loads(prefixes(server, "list", "--name", "h", "--json").stdout)
    assert [one["id"] for one in listed] == [second, first]
    assert json.loads(prefixes(server, "show", "h", "--at", "1", "--json").stdout)["id"] == first


def test_kv_is_evicted_and_computed_again(server: RunningServer, engine: ScriptedEngine) -> None:
    prefix_id = made(server, "h", "--system", "Be brief.")
    assert prefixes(server, "evict", "h").exit_code == 0
    assert engine.contexts.exports == {}
    assert f"{prefix_id}: warm" in prefixes(server, "warm", "h").stderr
    assert len(engine.contexts.exports) == 1


def test_what_is_kept_comes_from_files_or_standard_input(
    server: RunningServer, model: TextModel, engine: ScriptedEngine, tmp_path: Path
) -> None:
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps([{"role": "system", "content": "Be brief."}]))
    made(server, "h", "--messages", str(path))
    assert "Be brief." in model.tokenizer.decode(engine.last.prompt_ids)
    made(server, "h", "--messages", "-", text='{"messages": [{"role": "user", "content": "Hi."}]}')
    assert "Hi." in model.tokenizer.decode(engine.last.prompt_ids)
    made(server, "h", "--text", "-", text="Once upon a time")
    assert model.tokenizer.decode(engine.last.prompt_ids) == "Once upon a time"


def test_a_stored_response_is_kept(server: RunningServer, model: TextModel, engine: ScriptedEngine) -> None:
    asked = {"input": "Hi.", "store": True}
    answer = httpx.post(f"{server.url}/v1/responses", json=asked, headers={"Authorization": "Bearer key"}, timeout=60)
    made(server, "h", "--response", answer.json()["id"])
    assert "Hello there." in model.tokenizer.decode(engine.last.prompt_ids)


def test_the_context_that_a_program_returns_is_kept(
    server: RunningServer, model: TextModel, engine: ScriptedEngine, tmp_path: Path
) -> None:
    source = "async def main(request, lm):\n    return await lm.context(request.args['text'])\n"
    made(server, "h", "--program", "-", "--arg", "text=the handbook", text=source)
    assert model.tokenizer.decode(engine.last.prompt_ids) == "the handbook"
    path = tmp_path / "maker.py"
    path.write_text(source)
    made(server, "h", "--program", str(path), "--arg", 'text="again"')
    assert model.tokenizer.decode(engine.last.prompt_ids) == "again"
    assert prefixes(server, "create", "h", "--program", "nobody").exit_code == Exit.NOT_FOUND


def test_what_is_wrong_is_told_in_one_line(server: RunningServer) -> None:
    assert prefixes(server, "show", "none").exit_code == Exit.NOT_FOUND
    assert prefixes(server, "list", key="other").exit_code == Exit.ACCESS_DENIED
    assert prefixes(server, "list", "--url", "http://127.0.0.1:1").exit_code == Exit.UNAVAILABLE
    refused = prefixes(server, "create", "UPPER", "--system", "x")
    assert (refused.exit_code, "'name'" in refused.stderr) == (Exit.USAGE, True)
    for wrong in (
        ("create", "h"),
        ("create", "h", "--system", "x", "--text", "-"),
        ("create", "h", "--messages", "-"),
        ("create", "h", "--system", "x", "--arg", "a=1"),
        ("create", "h", "--system", "x", "--program", "-"),
        ("create", "h", "--system", "x", "--metadata", "a"),
        ("update", "h"),
        ("update", "h", "--allow", "x", "--allow-all"),
        ("show", "/"),
    ):
        assert prefixes(server, *wrong).exit_code == Exit.USAGE
    missing = prefixes(server, "create", "h", "--text", "/no/such/file")
    assert (missing.exit_code, "No such file" in missing.stderr) == (Exit.FAILURE, True)
