"""Workers with a store and a directory, over a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

import gateway.batches.job
import gateway.batches.runner
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.batches.wire import Clock, Worker

Start = Callable[..., Worker]


@pytest.fixture
async def start(engine: ScriptedEngine, model: TextModel, redis_url: str, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts workers of one server."""
    workers: list[Worker] = []

    def start(**settings: object) -> Worker:
        worker = Worker(engine, model, **{"redis_url": redis_url, "files_dir": str(tmp_path), **settings})
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        await worker.close()


@pytest.fixture
async def client(start: Start) -> httpx.AsyncClient:
    """Talks to a worker that works on batches."""
    worker = start()
    worker.start()
    return worker.client


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are looked after often, and end by `lapse` alone: none is lost because the machine is busy."""
    monkeypatch.setattr("gateway.state.leases.LEASE_S", 3600.0)
    monkeypatch.setattr(gateway.batches.job, "BEAT_S", 0.1)
    monkeypatch.setattr(gateway.batches.runner, "POLL_S", 0.05)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What batches take for the time."""
    clock = Clock()
    for module in ("gateway.batches.job", "gateway.state.leases"):
        monkeypatch.setattr(f"{module}.time", clock)
    return clock
