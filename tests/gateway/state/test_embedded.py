"""The private redis-server: found, started, kept, adopted, ended."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from redis import Redis

from gateway.restarts import RestartPolicy
from gateway.state.embedded import EmbeddedRedis, EmbeddedRedisError, answers, find_server

PATIENCE_S = 60.0
QUICK = RestartPolicy(first_delay_s=0.01, max_delay_s=0.01, max_quick_deaths=3)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def server(tmp_path: Path, notes: list[str]) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path / "state", find_server(), notes.append, QUICK)
    yield server
    server.stop()


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def pid_of(server: EmbeddedRedis) -> int:
    with Redis.from_url(server.url) as client:
        return int(client.info("server")["process_id"])


def test_it_serves_nobody_else_and_forgets_nothing(server: EmbeddedRedis, tmp_path: Path) -> None:
    server.start()
    with Redis.from_url(server.url) as client:
        config = client.config_get()
        client.set("key", "value")
    assert config["port"] == "0"
    assert config["appendonly"] == "yes"
    assert config["maxmemory-policy"] == "noeviction"
    path = Path(server.url.removeprefix("unix://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
    server.stop()
    assert not answers(path)
    server.start()
    with Redis.from_url(server.url) as client:
        assert client.get("key") == b"value"


def test_it_is_started_again_after_a_crash_with_what_it_held(server: EmbeddedRedis, notes: list[str]) -> None:
    server.start()
    pid = pid_of(server)
    with Redis.from_url(server.url) as client:
        client.config_set("appendfsync", "always")
        client.set("key", "value")
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        server.poll(time.monotonic())
        return answers(Path(server.url.removeprefix("unix://"))) and pid_of(server) != pid

    until(is_back)
    assert any("SIGKILL" in note for note in notes)
    with Redis.from_url(server.url) as client:
        assert client.get("key") == b"value"


def test_one_that_keeps_dying_is_given_up_with_a_word(server: EmbeddedRedis, notes: list[str]) -> None:
    server.start()

    def is_given_up() -> bool:
        server.poll(time.monotonic())
        if answers(Path(server.url.removeprefix("unix://"))):
            os.kill(pid_of(server), signal.SIGKILL)
        return "giving it up" in notes[-1] if notes else False

    until(is_given_up)
    assert "redis.log" in notes[-1]
    server.poll(time.monotonic() + 1000)
    assert not answers(Path(server.url.removeprefix("unix://")))


def test_an_orphan_is_adopted_and_ended_with_us(server: EmbeddedRedis, notes: list[str], tmp_path: Path) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    orphan = subprocess.Popen([find_server(), "--port", "0", "--unixsocket", directory / "redis.sock"], cwd=directory)
    until(lambda: answers(directory / "redis.sock"))
    server.start()
    assert pid_of(server) == orphan.pid
    assert "still runs" in notes[-1]
    server.poll(time.monotonic())
    server.stop()
    assert orphan.wait(PATIENCE_S) == 0


def test_two_servers_never_share_a_directory(server: EmbeddedRedis, tmp_path: Path) -> None:
    server.start()
    with pytest.raises(EmbeddedRedisError, match="another server keeps its state"):
        EmbeddedRedis(tmp_path / "state", find_server()).start()
    assert pid_of(server)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems leave it to the next start to adopt")
def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gateway.state.embedded import EmbeddedRedis, find_server\n"
        "server = EmbeddedRedis(Path(sys.argv[1]), find_server()); server.start(); print(server.url, flush=True)\n"
        "time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "state")], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    url = parent.stdout.readline().decode().strip()
    with Redis.from_url(url) as client:
        child = psutil.Process(int(client.info("server")["process_id"]))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / ("long-" * 30), find_server())
    server.start()
    path = Path(server.url.removeprefix("unix://"))
    assert answers(path)
    server.stop()
    assert not path.parent.exists()


def test_a_server_that_cannot_start_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedRedisError, match=r"ended while starting \(exit code 1\): see .*redis\.log"):
        EmbeddedRedis(tmp_path, Path("/bin/false")).start()
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedRedisError, match="cannot be used"):
        EmbeddedRedis(tmp_path / "file" / "below", find_server()).start()
    (tmp_path / "text").write_text("no program")
    (tmp_path / "text").chmod(0o700)
    with pytest.raises(EmbeddedRedisError, match="cannot be run"):
        EmbeddedRedis(tmp_path / "other", tmp_path / "text").start()


def test_the_operators_program_is_taken_or_refused_by_name(tmp_path: Path) -> None:
    assert find_server("/bin/true") == Path("/bin/true")
    with pytest.raises(EmbeddedRedisError, match="WYE_REDIS_SERVER is nowhere"):
        find_server("nowhere")


def test_a_server_on_the_path_comes_first_then_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis-server", "valkey-server"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == tmp_path / "valkey-server"
    (tmp_path / "valkey-server").unlink()
    assert find_server() == tmp_path / "redis-server"
    (tmp_path / "redis-server").unlink()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedRedisError, match="Install Redis or Valkey"):
        find_server()
