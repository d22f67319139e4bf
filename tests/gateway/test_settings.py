"""Settings from the environment, and their way into worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.settings import PROMETHEUS_VARIABLE, Settings, WorkerSettings


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("WYE_"):
            monkeypatch.delenv(name)


def test_lists_are_written_with_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WYE_API_KEYS", "k1, k2,")
    monkeypatch.setenv("WYE_MODEL_NAMES", "org/model,alias")
    monkeypatch.setenv("WYE_CORS_ORIGINS", "")
    monkeypatch.setenv("WYE_PORT", "9000")
    settings = Settings()
    assert settings.api_keys == ("k1", "k2")
    assert settings.model_names == ("org/model", "alias")
    assert settings.cors_origins == ("*",)
    assert settings.port == 9000


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("PORT", "many"), ("DRAIN_S", "-1"), ("WORKERS", "0"), ("LOG_FORMAT", "xml")],
)
def test_a_bad_value_stops_the_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"WYE_{name}", value)
    with pytest.raises(ValidationError):
        Settings()


def test_arguments_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WYE_PORT", "9000")
    assert Settings(port=1).port == 1


def test_keys_are_not_shown() -> None:
    assert "secret" not in repr(Settings(api_keys=("secret",)))


def test_every_setting_is_described() -> None:
    undescribed = [
        name
        for model in (Settings, WorkerSettings)
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert undescribed == []


def test_worker_settings_reach_the_worker_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = WorkerSettings(
        settings=Settings(api_keys=("k1",), port=1234, cors_origins=()),
        engine_endpoint="ipc:///somewhere",
        model_path=Path("/model"),
        socket_fd=7,
        index=2,
        metrics_dir=Path("/metrics"),
    )
    monkeypatch.setenv("WYE_PORT", "1")
    for name, value in sent.environment().items():
        monkeypatch.setenv(name, value)
    assert WorkerSettings.from_environment() == sent
    assert sent.environment()[PROMETHEUS_VARIABLE] == "/metrics"


def test_a_worker_without_settings_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError):
        WorkerSettings.from_environment()
