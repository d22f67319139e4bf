"""Two workers of one server, over one scripted engine and one Redis, with a key for each of two people."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.runs.workers import Worker


@pytest.fixture
async def workers(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[tuple[Worker, Worker]]:
    """Both; nothing but exports may be left of what they did."""
    pair = tuple(Worker(engine, model, redis_url, max_prefixes=4) for _ in range(2))
    yield pair[0], pair[1]
    for worker in pair:
        await worker.close()
    assert engine.streams == {}
    assert engine.contexts.histories == {}


@pytest.fixture
def here(workers: tuple[Worker, Worker]) -> Worker:
    """One worker."""
    return workers[0]


@pytest.fixture
def there(workers: tuple[Worker, Worker]) -> Worker:
    """The other one."""
    return workers[1]
