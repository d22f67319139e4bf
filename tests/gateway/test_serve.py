"""The supervisor as a process of its own: restarts, drains, and never leaves a child behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import words_of

PATIENCE_S = 60.0


class Running:
    """A supervisor under test and what it has told."""

    def __init__(self, options: dict[str, Any], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.serving.harness", json.dumps(options)],
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        self.events: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, event: str, count: int = 1, containing: str = "") -> dict[str, Any]:
        """The `count`-th event of a kind whose message contains a text."""

        def found() -> list[dict[str, Any]]:
            return [item for item in self.events if item["event"] == event and containing in item.get("message", "")]

        with self._news:
            assert self._news.wait_for(lambda: len(found()) >= count, PATIENCE_S), self.events
        return found()[count - 1]

    @property
    def url(self) -> str:
        """Where it serves; waits until it does."""
        url: str = self.wait_for("ready")["url"]
        return url

    def children(self) -> list[psutil.Process]:
        """Its living children."""
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return children

    def workers(self) -> list[int]:
        """Process ids of its workers."""
        return [child.pid for child in self.children() if "gateway.lifeline" in words_of(child)]

    def end(self) -> int:
        """Waits for its end; returns the exit code."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.events.append(json.loads(line))
                self._news.notify_all()


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Running] = []

    def start(environment: dict[str, str] | None = None, **options: Any) -> Running:
        started.append(Running(options, {"TMPDIR": str(tmp_path), **(environment or {})}))
        return started[-1]

    yield start
    for running in started:
        left = running.children() if running.process.poll() is None else []
        running.process.kill()
        running.process.wait()
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def get(url: str) -> str:
    """Body of a GET."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
        return text


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def gone(processes: list[psutil.Process]) -> bool:
    """True when all have ended; nobody may be left to collect an orphan, so zombies count as ended."""
    return all(not item.is_running() or item.status() == psutil.STATUS_ZOMBIE for item in processes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_and_exits_with_zero(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    running = start(workers=2)
    assert get(f"{running.url}/ready")
    children = running.children()
    assert len(children) == 3
    running.process.send_signal(number)
    assert running.end() == 0
    assert gone(children)
    assert list(tmp_path.glob("wye-*")) == []


def test_a_request_in_flight_is_finished_before_the_end(start: Start, tmp_path: Path) -> None:
    running = start({"FAKE_WORKER_MARK": str(tmp_path / "begun")})
    answers: list[str] = []
    client = threading.Thread(target=lambda: answers.append(get(f"{running.url}/slow")))
    url = running.url
    client.start()
    until((tmp_path / "begun").exists)
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0
    client.join()
    assert answers
    with pytest.raises(urllib.error.URLError):
        get(url)


def test_a_second_signal_ends_at_once(start: Start) -> None:
    running = start({"FAKE_WORKER": "stubborn"}, drain_s=1000)
    assert running.url
    children = running.children()
    running.process.send_signal(signal.SIGINT)
    running.wait_for("note", containing="stopping: requests in flight")
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    assert gone(children)


def test_a_worker_that_never_ends_is_killed_after_the_drain_time(start: Start) -> None:
    running = start({"FAKE_WORKER": "stubborn"}, drain_s=0, grace_s=1)
    assert running.url
    children = running.children()
    running.process.send_signal(signal.SIGTERM)
    running.wait_for("note", containing="did not finish in time")
    assert running.end() == 0
    assert gone(children)


def test_a_signal_while_loading_ends_it(start: Start) -> None:
    running = start(engine=["loads_forever"])
    running.wait_for("stage", containing="loading the model")
    children = running.children()
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 0
    assert gone(children)


def test_a_killed_engine_is_started_again_and_workers_stay(start: Start) -> None:
    running = start(workers=1)
    assert running.url
    workers = running.workers()
    os.kill(running.wait_for("engine")["pid"], signal.SIGKILL)
    running.wait_for("note", containing="the engine process died (SIGKILL")
    running.wait_for("note", containing="the engine serves again")
    assert running.wait_for("engine", count=2)["pid"] in [child.pid for child in running.children()]
    assert running.workers() == workers


def test_an_engine_that_keeps_dying_is_given_up(start: Start) -> None:
    running = start(engine=["ok", "dies"], policy={"max_quick_deaths": 3})
    assert running.url
    children = running.children()
    os.kill(running.wait_for("engine")["pid"], signal.SIGKILL)
    error = running.wait_for("error")
    assert error["kind"] == "GaveUp"
    assert "keeps dying (the engine process ended while loading (exit code 9))" in error["message"]
    assert running.end() == 1
    assert gone(children)


def test_a_killed_worker_is_started_again(start: Start) -> None:
    running = start(workers=2)
    assert running.url
    first, second = running.workers()
    os.kill(first, signal.SIGKILL)
    running.wait_for("note", containing="died (SIGKILL")
    until(lambda: len(running.workers()) == 2 and first not in running.workers())
    assert second in running.workers()
    assert get(f"{running.url}/ready")


def test_an_engine_that_cannot_load_ends_everything_with_its_message(start: Start) -> None:
    running = start(engine=["fails"])
    error = running.wait_for("error")
    assert (error["kind"], error["message"]) == ("ModelLoadError", "config.json: no such architecture")
    assert running.end() == 1


def test_a_worker_that_cannot_start_ends_everything(start: Start) -> None:
    running = start({"FAKE_WORKER": "crash"}, engine=["loads_forever"])
    error = running.wait_for("error")
    assert error["kind"] == "GaveUp"
    assert "exit code 3" in error["message"]
    assert running.end() == 1


def test_a_model_that_the_gateway_cannot_read_is_a_bad_model(start: Start) -> None:
    running = start({"FAKE_WORKER": "bad-model"}, engine=["loads_forever"])
    assert running.wait_for("error")["kind"] == "ModelLoadError"
    assert running.end() == 1


def test_children_of_a_killed_supervisor_end_by_themselves(start: Start, tmp_path: Path) -> None:
    running = start(workers=2)
    assert running.url
    children = running.children()
    assert len(children) == 3
    running.process.kill()
    running.process.wait()
    until(lambda: gone(children))
    (left,) = tmp_path.glob("wye-*")
    assert start().url
    assert not left.exists()
