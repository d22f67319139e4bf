"""Connections to Redis, as everything that is kept there uses them: one server, Sentinels or a cluster alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError

from gateway.errors import StoreUnavailable
from gateway.state.address import Address, parse_address

_TIMEOUT_S = 5.0
_MAX_CONNECTIONS = 32


def connect(url: str, *, max_connections: int = _MAX_CONNECTIONS) -> Redis:
    """A client that connects when first used, and asks again for an answer that was lost: all scripts allow that.

    Args:
        url: See `gateway.state.address`.
        max_connections: To one server; whoever needs another one waits.

    Raises:
        ValueError: The address is none.
    """
    address = parse_address(url)
    retry = Retry(ExponentialBackoff(cap=0.2, base=0.02), 2)
    if address.kind == "sentinel":
        return _by_sentinels(address, retry, max_connections)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        # Asked for what `Redis` has too, on keys of one slot.
        return cast(
            "Redis",
            RedisCluster(startup_nodes=nodes, retry=retry, max_connections=max_connections, **_options(address)),
        )
    pool = BlockingConnectionPool.from_url(
        url, max_connections=max_connections, timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S, retry=retry
    )
    return Redis.from_pool(pool)


def connect_listener(url: str) -> Redis:
    """A client for what is published: any node of a cluster passes on what was published on another.

    Raises:
        ValueError: The address is none.
    """
    address = parse_address(url)
    if address.kind == "cluster":
        host, port = address.hosts[0]
        return Redis(host=host, port=port, **_options(address))
    if address.kind == "sentinel":
        return _by_sentinels(address, Retry(ExponentialBackoff(cap=0.2, base=0.02), 2), _MAX_CONNECTIONS)
    return Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)


def _by_sentinels(address: Address, retry: Retry, max_connections: int) -> Redis:
    own = {
        "username": address.options.get("sentinel_username"),
        "password": address.options.get("sentinel_password"),
        "socket_timeout": _TIMEOUT_S,
    }
    tls = {name: value for name, value in _options(address).items() if name.startswith("ssl")}
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=own | tls)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(
        address.service, db=address.db, retry=retry, max_connections=max_connections * 8, **_options(address)
    )
    return master


def _options(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": _TIMEOUT_S,
        "socket_connect_timeout": _TIMEOUT_S,
    }
    if address.is_tls:
        found |= {"ssl": True, **{name: value for name, value in address.options.items() if name.startswith("ssl_")}}
    return found


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
