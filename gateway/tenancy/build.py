"""Puts together what tenants need in one gateway process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.settings import Settings
from gateway.state.link import connect
from gateway.state.tenancy import TenancyStore
from gateway.tenancy.directory import Directory
from gateway.tenancy.gate import Gate


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenancy:
    """Everything about tenants that one process has.

    Attributes:
        store: Records.
        directory: The same, as administrators work with it.
        gate: Admits requests.
    """

    redis: Redis
    store: TenancyStore
    directory: Directory
    gate: Gate

    async def aclose(self) -> None:
        """Settles what has ended and closes the connections. Idempotent."""
        await self.gate.aclose()
        with contextlib.suppress(RedisError, OSError):
            await self.redis.aclose()


def build_tenancy(settings: Settings, url: str) -> Tenancy | None:
    """What tenants need; None where there are none, or no Redis to keep them.

    Args:
        settings: How to serve.
        url: Of the Redis; empty for none.
    """
    if not settings.admin_key or not url:
        return None
    redis = connect(url)
    store = TenancyStore(redis)
    return Tenancy(redis=redis, store=store, directory=Directory(store), gate=Gate(redis))
