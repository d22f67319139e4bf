"""A store over a real redis-server, and supervisors to run one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.state.store import Bounds, ResponseStore
from tests.gateway.test_serve import start

__all__ = ["start"]


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[ResponseStore]:
    """A store that keeps much for long."""
    store = ResponseStore(redis_url, Bounds(count=1000, bytes=10_000_000, ttl_s=3600))
    yield store
    await store.aclose()
