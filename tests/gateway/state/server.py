"""Fixtures: one redis-server for all tests, emptied before each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from gateway.state.embedded import EmbeddedRedis, find_server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A running server."""
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"), find_server())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """Where an empty Redis is."""
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url
