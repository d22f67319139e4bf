"""Connections to Redis, as files and batches use them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError

from gateway.errors import StoreUnavailable

_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 32


def connect(url: str) -> Redis:
    """A client that connects when first used, and asks again for an answer that was lost: all scripts allow that.

    Args:
        url: As redis-py reads it: `redis://`, `rediss://` or `unix://`.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=_MAX_CONNECTIONS,
        timeout=_TIMEOUT_S,
        socket_timeout=_TIMEOUT_S,
        retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), 2),
    )
    return Redis.from_pool(pool)


@contextlib.contextmanager
def unavailable(what: str) -> Iterator[None]:
    """Turns failures of Redis into `StoreUnavailable`.

    Args:
        what: That is kept there.

    Raises:
        StoreUnavailable: Redis did not answer.
    """
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"The store of {what} does not answer: {type(error).__name__}.") from error
