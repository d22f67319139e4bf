"""The private Redis of one server: there when needed, never in the way, ended with the supervisor."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest
from redis import Redis

from gateway.settings import Settings
from gateway.state.embedded import NO_BINARY, answers
from gateway.state.link import connect
from gateway.state.private import private_redis
from gateway.state.tenancy import TenancyStore
from tests.gateway.test_serve import Running, Start, gone, until


def socket_of(directory: Path) -> Path:
    return directory / "redis.sock"


def redis_of(running: Running) -> list[psutil.Process]:
    """The redis-server among the children of a supervisor."""
    return [child for child in running.children() if "redis-server" in child.name()]


def test_it_runs_as_long_as_the_block(tmp_path: Path) -> None:
    notes: list[str] = []
    with private_redis(Settings(), tmp_path, notes.append) as redis:
        assert redis is not None
        assert answers(socket_of(tmp_path))
    assert not answers(socket_of(tmp_path))
    assert notes == []


def test_the_settings_say_where(tmp_path: Path) -> None:
    with private_redis(Settings(state_dir=str(tmp_path / "mine")), tmp_path / "default", print) as redis:
        assert redis is not None
        assert answers(socket_of(tmp_path / "mine"))
    assert not (tmp_path / "default").exists()


@pytest.mark.parametrize("settings", [Settings(redis_url="redis://127.0.0.1:1"), Settings()])
def test_nothing_is_run_where_another_is_named_or_no_directory_is(settings: Settings) -> None:
    with private_redis(settings, None, print) as redis:
        assert redis is None


def test_a_server_without_a_program_goes_on_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    notes: list[str] = []
    with private_redis(Settings(), tmp_path / "state", notes.append) as redis:
        assert redis is None
    assert notes == [NO_BINARY]


def test_a_second_server_gets_a_directory_that_goes_with_it(tmp_path: Path) -> None:
    notes: list[str] = []
    with (
        private_redis(Settings(), tmp_path, notes.append) as first,
        private_redis(Settings(), tmp_path, notes.append) as second,
    ):
        assert first is not None
        assert second is not None
        assert first.url != second.url
        with Redis.from_url(first.url) as one, Redis.from_url(second.url) as two:
            one.set("key", "value")
            assert two.get("key") is None
        own = Path(second.url.removeprefix("unix://")).parent
    assert "WYE_STATE_DIR" in notes[0]
    assert not own.exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379", "redis-socket://x"])
def test_a_url_of_another_kind_stops_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="redis://"):
        Settings(redis_url=url)


def test_a_supervisor_keeps_it_going_and_ends_it_last(start: Start, tmp_path: Path) -> None:
    running = start({"WYE_STATE_DIR": str(tmp_path / "state")})
    assert running.url
    (first,) = redis_of(running)
    first.send_signal(signal.SIGKILL)
    running.wait_for("note", containing="redis-server died (SIGKILL")
    until(lambda: answers(socket_of(tmp_path / "state")))
    children = running.children()
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0
    assert gone(children)
    assert not answers(socket_of(tmp_path / "state"))


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="other systems leave it to the next start to adopt")
def test_it_does_not_outlive_a_supervisor_that_is_killed(start: Start, tmp_path: Path) -> None:
    running = start({"WYE_STATE_DIR": str(tmp_path / "state")})
    assert running.url
    children = running.children()
    assert redis_of(running)
    running.process.kill()
    until(lambda: gone(children))


async def make_tenant(url: str) -> None:
    """As an administrator would."""
    redis = connect(url)
    fields = {"name": "acme", "state": "active", "created": "1"}
    assert await TenancyStore(redis).write_tenant("create", "proj_a", fields, {"at": 1}) == 1
    await redis.aclose()


def test_a_server_that_has_lost_its_administrators_key_says_what_becomes_of_its_tenants(
    tmp_path: Path, redis_url: str
) -> None:
    notes: list[str] = []
    with private_redis(Settings(admin_key="adm-0123456789abcdef"), tmp_path, notes.append) as redis:
        assert redis is not None
        asyncio.run(make_tenant(redis.url))
    assert notes == []
    with private_redis(Settings(), tmp_path, notes.append):
        pass
    (note,) = notes
    assert "WYE_ADMIN_KEY is not set: whoever asks is served" in note
    asyncio.run(make_tenant(redis_url))
    with private_redis(Settings(redis_url=redis_url, api_keys=("k",)), None, notes.append):
        pass
    assert "their keys are refused" in notes[-1]
