"""Log lines for people and for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from engine.text.model import TextModel
from gateway.logs import JsonFormatter, configure_logging
from gateway.settings import Settings
from tests.fakes import ScriptedEngine, scripted_client
from tests.gateway.wire import CHAT, chat


@pytest.fixture
def _root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


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


@pytest.mark.usefixtures("_root_as_it_was")
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
    engine: ScriptedEngine, model: TextModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scripted_client(engine, model) as client:
        for _ in range(3):
            await client.post(CHAT, json=chat(a_field_of_this_very_test=1))
    assert sum("a_field_of_this_very_test" in record.getMessage() for record in caplog.records) == 1
