"""How the matrix finds out: the test of the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.clients import clients
from tests.e2e.clients.clients import Client
from tests.e2e.clients.installing import ClientUnavailable, environment_of
from tests.e2e.clients.programs import lines
from tests.e2e.clients.programs.harness import Matrix, Target, failure
from tests.e2e.clients.scenarios import DirectedEngine
from tests.fakes import running_server, text_model
from tests.gateway.wire import chat

TEXT = text_model()


def test_a_client_that_cannot_be_installed_says_why_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "HERE", tmp_path)
    client = Client(name="bad", title="Bad", program="with_bad", snippet="bad")
    client.requirements.parent.mkdir()
    client.requirements.write_text("no requirement at all\n", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(ClientUnavailable, match="uv failed"):
            environment_of(client, tmp_path / "environments")
    client.requirements.write_text("", encoding="utf-8")
    made = environment_of(client, tmp_path / "environments")
    assert (made / "bin" / "python").exists()
    assert environment_of(client, tmp_path / "environments") == made


def expect_what_does_not_come(target: Target) -> None:
    failure(ValueError, dict)


def test_a_check_that_raises_fails_and_a_missing_error_raises(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = Matrix("pytest")
    target: dict[str, Any] = {"url": "http://127.0.0.1:1/v1", "key": "", "model": "", "num_hello_tokens": 0}
    target |= {"num_cached_tokens": 0, "real_url": None, "real_model": "", "snippet": None}
    monkeypatch.setattr(sys, "argv", ["program", json.dumps(target)])
    monkeypatch.setattr(Target, "wait_until_idle", lambda self: None)
    matrix.check("chat")(lambda target: None)
    matrix.check("stream")(expect_what_does_not_come)
    matrix.lacks("It cannot.", "tools")
    matrix.run()
    cells = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert cells["chat"] == {"state": "works"}
    assert cells["tools"] == {"state": "lacks", "detail": "It cannot."}
    assert "ValueError was not raised" in cells["stream"]["detail"]
    assert "snippet" not in cells


def test_a_scenario_that_no_engine_could_play_is_noted() -> None:
    engine = DirectedEngine(TEXT)
    with running_server(engine, TEXT) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}):
            body = chat(response_format=form, max_tokens=100)
            body["messages"][0]["content"] = lines.ask("person")
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            body["messages"][0]["content"] = "no scenario"
            assert client.post("/v1/chat/completions", json=body).status_code == 400
    assert len(engine.faults) == 1
