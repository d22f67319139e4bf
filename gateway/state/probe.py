"""Whether a Redis that was named is one that can be used: asked once, when a server starts."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, BusyLoadingError, ClusterError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.errors import StoreUnavailable
from gateway.failures import ServeError
from gateway.state.link import connect
from gateway.state.tenancy import TenancyStore

MIN_VERSION = (6, 2)
SAFE_POLICY = "noeviction"

_FEATURES = """
-- wye probe 1
-- KEYS  a key of ours that nothing uses
-- returns  1 if scripts can read the clock, write streams and sorted sets, and publish
local now = redis.call('TIME')
redis.call('XADD', KEYS[1], '*', 'at', now[1])
redis.call('DEL', KEYS[1])
redis.call('ZADD', KEYS[1], now[1], 'one')
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], 'probe')
return 1
"""


class UnfitStore(ServeError):
    """The Redis that was named cannot be used; the message says why."""


async def probe(redis: Redis, *, keeps_accounts: bool) -> list[str]:
    """Looks whether a Redis can do all that is asked of it.

    Args:
        redis: Connected or not.
        keeps_accounts: It is to keep quotas: what might drop or refuse writes is then no warning.

    Returns:
        Warnings for people.

    Raises:
        UnfitStore: It cannot be used.
        RedisError: It does not answer.
    """
    try:
        await redis.eval(_FEATURES, 1, "{wye}:probe")
    except AuthenticationError as error:
        raise UnfitStore(f"the Redis of WYE_REDIS_URL refuses its user or password: {error}") from None
    except (RedisConnectionError, RedisTimeoutError, BusyLoadingError, ClusterError):
        raise
    except RedisError as error:
        raise UnfitStore(f"the Redis of WYE_REDIS_URL cannot run the scripts that Wye needs: {error}") from None
    try:
        told: Any = await redis.info()
    except RedisError:
        return ["the Redis of WYE_REDIS_URL does not say its version and policy (INFO is not allowed)"]
    warnings: list[str] = []
    for one in _nodes(told):
        warnings += _judge(one, keeps_accounts=keeps_accounts)
    return list(dict.fromkeys(warnings))


def check_store(url: str, *, keeps_accounts: bool) -> list[str]:
    """`probe` for a supervisor, which has no event loop. A Redis that does not answer is a warning: it may come.

    Raises:
        UnfitStore: It cannot be used.
    """

    async def ask() -> list[str]:
        redis = connect(url)
        try:
            return await probe(redis, keeps_accounts=keeps_accounts)
        except (RedisError, OSError, TimeoutError) as error:
            return [f"the Redis of WYE_REDIS_URL does not answer yet: {type(error).__name__}"]
        finally:
            await redis.aclose()

    return asyncio.run(ask())


def check_tenants(url: str, *, needs_key: bool) -> list[str]:
    """Warnings of a server that is started without tenants, where a Redis has some: their keys and limits hold no more.

    For a supervisor, which has no event loop; a Redis that does not answer is passed over.

    Args:
        url: Of the Redis.
        needs_key: Whether this server asks for keys of its settings.
    """

    async def ask() -> int:
        redis = connect(url)
        try:
            return await TenancyStore(redis).num_tenants()
        except StoreUnavailable:
            return 0
        finally:
            await redis.aclose()

    count = asyncio.run(ask())
    if not count:
        return []
    tenants = "there is a tenant" if count == 1 else f"there are {count} tenants"
    now = "their keys are refused" if needs_key else "whoever asks is served, with any key or none"
    return [f"{tenants} in the store, but WYE_ADMIN_KEY is not set: {now}, and no limit holds"]


def _nodes(told: Any) -> list[dict[str, Any]]:
    """Of a cluster every node tells; of one server it is just that."""
    return [told] if "redis_version" in told else list(told.values())


def _judge(told: dict[str, Any], *, keeps_accounts: bool) -> list[str]:
    version = str(told.get("redis_version", "0"))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < MIN_VERSION:
        raise UnfitStore(f"the Redis of WYE_REDIS_URL is version {version}; at least 6.2 is needed")
    warnings = []
    policy = str(told.get("maxmemory_policy", SAFE_POLICY))
    if int(told.get("maxmemory", 0)) > 0 and policy != SAFE_POLICY:
        message = f"the Redis of WYE_REDIS_URL drops keys when it is full (maxmemory-policy {policy})"
        if keeps_accounts:
            raise UnfitStore(f"{message}: quotas would be lost; set it to {SAFE_POLICY}")
        warnings.append(message)
    if int(told.get("aof_enabled", 1)) == 0 and keeps_accounts:
        warnings.append("the Redis of WYE_REDIS_URL keeps no append-only file: a crash loses what was charged since")
    return warnings
