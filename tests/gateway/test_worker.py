"""Gateway processes in front of a real engine process, as `wye serve` runs them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from engine.config import EngineConfig, KVConfig
from engine.process import EngineProcess
from gateway.settings import Settings, WorkerSettings
from tests.gateway.test_telemetry import samples
from tests.gateway.wire import CHAT, chunks, error_of, joined
from tests.tiny_models import write_tiny_model

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Fleet:
    """One engine and two workers on one socket.

    Args:
        directory: For all their files.
        settings: Of the workers.
    """

    def __init__(self, directory: Path, **settings: object) -> None:
        self._settings = Settings.model_validate({"drain_s": 20, "log_level": "warning", **settings})
        model_path = write_tiny_model(directory / "tiny", "llama")
        config = EngineConfig(model=str(model_path), device="cpu", weights="float32", kv=KVConfig(num_pages=256))
        self.engine = EngineProcess(config, f"ipc://{directory}/engine", log_level="WARNING")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        metrics_dir = directory / "metrics"
        metrics_dir.mkdir()
        self.workers = [self._start_worker(index, directory, model_path, metrics_dir) for index in range(2)]

    def _start_worker(
        self, index: int, directory: Path, model_path: Path, metrics_dir: Path
    ) -> subprocess.Popen[bytes]:
        settings = WorkerSettings(
            settings=self._settings,
            engine_endpoint=f"ipc://{directory}/engine",
            model_path=model_path,
            socket_fd=self._listener.fileno(),
            index=index,
            metrics_dir=metrics_dir,
        )
        return subprocess.Popen(
            [sys.executable, "-m", "gateway.worker"],
            env={**os.environ, **settings.environment()},
            pass_fds=(self._listener.fileno(),),
        )

    def get(self, path: str) -> httpx.Response:
        """Asks over a fresh connection, so that any worker may answer."""
        return httpx.get(self.url + path, timeout=60)

    def wait(self, path: str, status: int, patience_s: float = 60.0) -> None:
        """Waits until a few answers in a row, most likely of both workers, have that status."""
        deadline_s = time.monotonic() + patience_s
        in_a_row = 0
        while in_a_row < 6:
            in_a_row = in_a_row + 1 if self._status(path) == status else 0
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def post(self, path: str, body: object) -> httpx.Response:
        """Asks over fresh connections until a worker answers that is ready, as one may be before the other."""
        deadline_s = time.monotonic() + 60
        while (answer := httpx.post(self.url + path, json=body, timeout=60)).status_code == 503:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        return answer

    def _status(self, path: str) -> int:
        try:
            return self.get(path).status_code
        except httpx.HTTPError:
            return 0

    def stop(self) -> None:
        """Ends everything."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self._listener.close()
        self.engine.stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Not started: the engine. Started: the workers."""
    fleet = Fleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.stop()


def test_workers_wait_for_the_engine_serve_together_and_drain(fleet: Fleet) -> None:
    fleet.wait("/ready", 503)
    error_of(httpx.post(fleet.url + CHAT, json=BODY, timeout=60), 503)
    fleet.engine.start()
    fleet.engine.wait_ready(60)
    fleet.wait("/ready", 200)

    answers = [fleet.post(CHAT, BODY).json() for _ in range(8)]
    texts = {answer["choices"][0]["message"]["content"] for answer in answers}
    assert len(texts) == 1
    assert answers[0]["usage"]["completion_tokens"] == 8
    streamed = fleet.post(CHAT, {**BODY, "stream": True})
    assert joined(chunks(streamed.text)) in texts

    for _ in range(4):
        seen = samples(fleet.get("/metrics").text)
        assert seen[f"wye_http_requests_total,method=POST,route={CHAT},status=200"] == 9
        assert seen["wye_completion_tokens_sum"] == 72
        assert seen["wye_engine_up"] == 1

    for worker in fleet.workers:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(60) for worker in fleet.workers] == [0, 0]


def test_workers_outlive_the_engine(fleet: Fleet) -> None:
    fleet.engine.start()
    fleet.engine.wait_ready(60)
    fleet.wait("/ready", 200)
    fleet.post(CHAT, BODY)
    long = {**BODY, "max_tokens": 400, "stream": True}
    with httpx.stream("POST", fleet.url + CHAT, json=long, timeout=60) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(fleet.engine.pid, signal.SIGKILL)
        rest = [line for line in lines if line.startswith("data: ")]
    assert '"error"' in rest[-2]
    assert rest[-1] == "data: [DONE]"
    fleet.wait("/health", 503)
    fleet.wait("/ready", 503)
    error_of(httpx.post(fleet.url + CHAT, json=BODY, timeout=60), 503)
    assert all(worker.poll() is None for worker in fleet.workers)
