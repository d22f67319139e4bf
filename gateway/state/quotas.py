"""KV accounts in Redis: what engines report, and what they may spend. See `quota_scripts` for what is kept."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from gateway.state import quota_scripts
from gateway.state.quota_scripts import BASE
from gateway.state.tenancy import PREFIX, quota_store

MAX_BATCH = 200
"""Most tenants of one call, so that no script keeps others waiting."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an engine says of one tenant.

    Attributes:
        tenant: Whose.
        total_kib_ms: All that it has counted since it began.
        level_kib: What it counts now.
        need_kib_ms: What it is going to spend before it is heard of again, and somewhat more.
    """

    tenant: str
    total_kib_ms: int
    level_kib: int
    need_kib_ms: int


@dataclass(frozen=True, slots=True)
class Settled:
    """What a report was answered.

    Attributes:
        tenant: Whose.
        state: Of the tenant; `gone` if there is none, `stale` if the engine has been replaced.
        ceiling_kib_ms: All that the engine may count; -1 for no limit.
        window_ends_ms: When the window ends; 0 if nobody has said.
        num_known_ends: Ends of later windows that are known; -1 if none are needed, -2 if it has another window now.
    """

    tenant: str
    state: str
    ceiling_kib_ms: int
    window_ends_ms: int
    num_known_ends: int


class QuotaStore:
    """Accounts. Every method raises `QuotaStoreUnavailable` if Redis does not answer; all may be repeated.

    Args:
        redis: The caller closes it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        register = redis.register_script
        self._reporting = register(quota_scripts.REPORT)
        self._reaping = register(quota_scripts.REAP)
        self._window = register(quota_scripts.WINDOW)
        self._adjusting = register(quota_scripts.ADJUST)
        self._leading = register(quota_scripts.LEAD)

    async def report(
        self, engine: str, incarnation: int, reports: Sequence[Report], *, lease_ms: int, seed_kib_ms: int
    ) -> list[Settled]:
        """Settles what an engine has counted and grants what it wants, as far as that is there.

        Args:
            engine: Its name, without slashes; the same for all of its incarnations.
            incarnation: Rises with every start of it.
            reports: Of its tenants.
            lease_ms: When to give the engine up if nothing more is heard of it.
            seed_kib_ms: Granted to a tenant that needs less, so that it can begin; no more than half of what is left.
        """
        settled: list[Settled] = []
        for start in range(0, len(reports), MAX_BATCH):
            part = reports[start : start + MAX_BATCH]
            args = [PREFIX, engine, str(incarnation), str(lease_ms), str(seed_kib_ms)]
            for one in part:
                high, low = divmod(one.total_kib_ms, BASE)
                args += [one.tenant, str(high), str(low), str(one.level_kib), str(one.need_kib_ms)]
            with quota_store():
                answer: Any = await self._reporting(keys=[f"{PREFIX}lease"], args=args)
            settled += [_settled(one.tenant, answer[at * 6 : at * 6 + 6]) for at, one in enumerate(part)]
        return settled

    async def reap(self, most: int = 100) -> list[str]:
        """Gives up engines that have not been heard of: `TENANT/ENGINE` of each."""
        with quota_store():
            found: Any = await self._reaping(keys=[f"{PREFIX}lease"], args=[PREFIX, str(most)])
        return [str(one, "utf-8") for one in found]

    async def set_window(self, tenant: str, window: str, ends_ms: Sequence[int]) -> None:
        """Says which window a tenant's quota has, and when the next ones of a calendar end."""
        args = [PREFIX, tenant, window, *map(str, ends_ms)]
        with quota_store():
            await self._window(keys=[f"{PREFIX}acct:{tenant}"], args=args)

    async def adjust(self, tenant: str, kib_s: int, audit: Mapping[str, Any], operation: str = "") -> int:
        """Corrects what was used in the window, and returns what that is now in KiB·s.

        Args:
            tenant: Whose.
            kib_s: To add; negative takes off.
            audit: Line for the audit.
            operation: The same name again changes nothing more.
        """
        keys = [f"{PREFIX}{one}" for one in (f"acct:{tenant}", "audit", f"done:{operation or uuid.uuid4().hex}")]
        with quota_store():
            used = await self._adjusting(keys=keys, args=[PREFIX, tenant, str(kib_s), msgspec.json.encode(audit)])
        return int(used)

    async def lead(self, engine: str, name: str, lease_ms: int) -> bool:
        """True if the process of this name settles for an engine, until `lease_ms` from now."""
        with quota_store():
            return bool(await self._leading(keys=[f"{PREFIX}leader:{engine}"], args=[name, str(lease_ms)]))

    async def engines(self, tenant: str) -> dict[str, dict[str, str]]:
        """What each engine last said of a tenant, by its name."""
        with quota_store():
            members: Any = await self._redis.smembers(f"{PREFIX}shards:{tenant}")
            names = sorted(str(one, "utf-8") for one in members)
            found: Any = {name: await self._redis.hgetall(f"{PREFIX}shard:{tenant}:{name}") for name in names}
        return {
            name: {str(field, "utf-8"): str(value, "utf-8") for field, value in fields.items()}
            for name, fields in found.items()
        }

    async def limited(self) -> list[str]:
        """Ids of tenants with a KV quota."""
        with quota_store():
            found: Any = await self._redis.smembers(f"{PREFIX}limited")
        return sorted(str(one, "utf-8") for one in found)


def _settled(tenant: str, answer: Sequence[Any]) -> Settled:
    state, grant, high, low, ends, known = (one.decode() if isinstance(one, bytes) else str(one) for one in answer)
    ceiling = -1 if int(grant) < 0 else int(high) * BASE + int(low) + int(grant)
    return Settled(tenant, state, ceiling, int(ends), int(known))
