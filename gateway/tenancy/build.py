"""Puts together what tenants need in one gateway process."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.settings import Settings
from gateway.state.link import connect
from gateway.state.quotas import QuotaStore
from gateway.state.tenancy import TenancyStore
from gateway.tenancy.directory import Directory
from gateway.tenancy.gate import Gate
from gateway.tenancy.settling import Engine, Settler


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenancy:
    """Everything about tenants that one process has.

    Attributes:
        redis: Where they are.
        store: Records.
        directory: The same, as administrators work with it.
        quotas: KV accounts.
        gate: Admits requests.
        settler: Settles with the engine, once it is started.
    """

    redis: Redis
    store: TenancyStore
    directory: Directory
    quotas: QuotaStore
    gate: Gate
    settler: Settler

    async def aclose(self) -> None:
        """Settles what has ended and closes the connections. Idempotent."""
        await self.settler.aclose()
        await self.gate.aclose()
        with contextlib.suppress(RedisError, OSError):
            await self.redis.aclose()


def build_tenancy(settings: Settings, url: str, engine: Engine) -> Tenancy | None:
    """What tenants need; None where there are none, or no Redis to keep them.

    Args:
        settings: How to serve.
        url: Of the Redis; empty for none.
        engine: Told what tenants may spend.
    """
    if not settings.admin_key or not url:
        return None
    redis = connect(url)
    store, quotas = TenancyStore(redis), QuotaStore(redis)
    return Tenancy(
        redis=redis,
        store=store,
        directory=Directory(store),
        quotas=quotas,
        gate=Gate(redis),
        settler=Settler(engine, quotas, store),
    )
