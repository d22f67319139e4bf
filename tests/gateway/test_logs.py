"""Log lines for people and for machines."""

from __future__ import annotations

import json
import logging

import pytest

from engine.errors import EngineError, EngineStopped
from engine.logs import JsonFormatter
from engine.text.model import TextModel
from gateway.logs import configure_logging
from gateway.settings import Settings
from tests.fakes import Script, ScriptedEngine, scripted_client
from tests.gateway.wire import CHAT, chat


async def test_each_request_is_one_line_with_fields(
    engine: ScriptedEngine, model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scripted_client(engine, model, access_log=True) as client:
        await client.post(CHAT, json=chat(), headers={"x-request-id": "mine"})
        await client.get("/nope")
    lines = [record for record in caplog.records if record.name == "gateway.access"]
    fields = [json.loads(JsonFormatter().format(line)) for line in lines]
    assert [(one["method"], one["path"], one["status"]) for one in fields] == [
        ("POST", CHAT, 200),
        ("GET", "/nope", 404),
    ]
    assert fields[0]["request_id"] == "mine"
    assert lines[0].getMessage().startswith(f"POST {CHAT} 200 ")


async def test_probes_are_lines_for_debugging_only(
    engine: ScriptedEngine, model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with scripted_client(engine, model, access_log=True) as client:
        for path in ("/health", "/ready/", "/metrics", "/version"):
            await client.get(path)
    lines = [record for record in caplog.records if record.name == "gateway.access"]
    assert [line.levelname for line in lines] == ["DEBUG", "DEBUG", "DEBUG", "INFO"]


async def test_an_engine_that_dies_is_a_line_for_each_stream_and_a_bug_a_traceback(
    engine: ScriptedEngine, model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scripted_client(engine, model) as client:
        for error in (EngineStopped("the engine process ended"), EngineError("a bug")):
            engine.script = _fails_with(error)
            assert '"error"' in (await client.post(CHAT, json=chat(stream=True))).text
    told, bug = [record for record in caplog.records if record.name == "gateway.routes.answering"]
    assert (told.levelname, told.exc_info) == ("WARNING", None)
    assert "the engine process ended" in told.getMessage()
    assert bug.levelname == "ERROR"
    assert bug.exc_info


def _fails_with(error: EngineError) -> Script:
    return lambda request, index: [[40], error]


@pytest.mark.usefixtures("root_logging_as_it_was")
def test_json_lines_hold_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(Settings(log_format="json", log_level="warning"))
    log = logging.getLogger("gateway.test")
    log.info("not written")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("failed: %s", "what")
    (line,) = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert entry["message"] == "failed: what"
    assert entry["level"] == "error"
    assert "ValueError: why" in entry["traceback"]


async def test_an_unknown_field_is_logged_once(
    engine: ScriptedEngine, model: TextModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process may have used up how many fields are told at all.
    monkeypatch.setattr("gateway.schemas.base._reported_extras", set())
    caplog.set_level(logging.INFO)
    async with scripted_client(engine, model) as client:
        for _ in range(3):
            await client.post(CHAT, json=chat(a_field_of_this_very_test=1))
    assert sum("a_field_of_this_very_test" in record.getMessage() for record in caplog.records) == 1
