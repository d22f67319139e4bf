"""A model of engines that report and may die, next to the real scripts, and what must hold after every step."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from gateway.state.quotas import QuotaStore, Report
from gateway.state.tenancy import PREFIX, TenancyStore

LEASE_MS = 600_000
SEED = 50_000


@dataclass(slots=True)
class Engine:
    """One engine process."""

    name: str
    incarnation: int = 1
    totals: dict[str, int] = field(default_factory=dict)
    ceilings: dict[str, int] = field(default_factory=dict)


class World:
    """Engines, tenants, and all that has been acknowledged."""

    def __init__(self, redis: Redis, seed: int, *, limits: dict[str, int | None], num_engines: int = 3) -> None:
        self.redis = redis
        self.quotas = QuotaStore(redis)
        self.store = TenancyStore(redis)
        self.draw = random.Random(seed)
        self.limits = limits
        self.engines = [Engine(f"e{number}") for number in range(num_engines)]
        self.acknowledged: dict[tuple[str, int, str], int] = {}
        self.sent: list[tuple[str, int, list[Report]]] = []

    async def begin(self) -> None:
        """Makes the tenants."""
        for tenant, limit in self.limits.items():
            fields = {"name": tenant, "state": "active", "created": "1", "window": "month@UTC"}
            fields["kv"] = "" if limit is None else str(limit)
            assert await self.store.write_tenant("create", tenant, fields, {}) == 1

    async def step(self) -> None:
        """Something happens."""
        engine = self.draw.choice(self.engines)
        match self.draw.choices(
            ["work", "report", "again", "late", "crash", "zombie", "reap"], [40, 30, 8, 8, 5, 4, 5]
        )[0]:
            case "work":
                self._work(engine)
            case "report":
                await self.report(engine)
            case "again" if self.sent:
                await self._send(*self.sent[-1])
            case "late" if self.sent:
                await self._send(*self.draw.choice(self.sent[-20:]))
            case "crash":
                engine.incarnation += 1
                engine.totals, engine.ceilings = {}, {}
            case "zombie" if engine.incarnation > 1:
                await self._zombie(engine)
            case "reap":
                await self._reap(engine)

    async def report(self, engine: Engine) -> None:
        """A heartbeat."""
        reports = [
            Report(tenant, engine.totals.get(tenant, 0), self.draw.randrange(100), self.draw.randrange(200_000))
            for tenant in self.limits
        ]
        await self._send(engine.name, engine.incarnation, reports)

    def _work(self, engine: Engine) -> None:
        tenant = self.draw.choice(list(self.limits))
        spent = self.draw.randrange(120_000)
        ceiling = engine.ceilings.get(tenant, 0 if self.limits[tenant] is not None else -1)
        now = engine.totals.get(tenant, 0)
        # Now and then an engine hears of its ceiling too late, and goes a little beyond it.
        if ceiling >= 0 and self.draw.random() < 0.7:
            spent = min(spent, max(0, ceiling - now))
        engine.totals[tenant] = now + spent

    async def _send(self, name: str, incarnation: int, reports: list[Report]) -> None:
        self.sent.append((name, incarnation, reports))
        settled = await self.quotas.report(name, incarnation, reports, lease_ms=LEASE_MS, seed_kib_ms=SEED)
        engine = next(one for one in self.engines if one.name == name)
        for report, answer in zip(reports, settled, strict=True):
            if answer.state == "stale":
                continue
            key = (name, incarnation, report.tenant)
            self.acknowledged[key] = max(self.acknowledged.get(key, 0), report.total_kib_ms)
            if engine.incarnation == incarnation:
                engine.ceilings[report.tenant] = answer.ceiling_kib_ms

    async def _zombie(self, engine: Engine) -> None:
        before = {tenant: await self.account(tenant) for tenant in self.limits}
        reports = [Report(tenant, 10**9, 5, 10**6) for tenant in self.limits]
        if any(key[:2] == (engine.name, engine.incarnation) for key in self.acknowledged):
            settled = await self.quotas.report(engine.name, engine.incarnation - 1, reports, lease_ms=1, seed_kib_ms=1)
            assert {one.state for one in settled} == {"stale"}
            assert {tenant: await self.account(tenant) for tenant in self.limits} == before

    async def _reap(self, engine: Engine) -> None:
        for tenant in self.limits:
            await self.redis.zadd(f"{PREFIX}lease", {f"{tenant}/{engine.name}": 1}, xx=True)
        await self.quotas.reap()

    async def account(self, tenant: str) -> dict[str, Any]:
        """All that Redis has of an account."""
        return await self.store.account(tenant)

    async def check(self) -> None:
        """What must hold at all times.

        Raises:
            AssertionError: It does not.
        """
        forgiven: dict[str, int] = {}
        for _, fields in await self._ledger():
            if fields["kind"] == "forgiven":
                forgiven[fields["tenant"]] = forgiven.get(fields["tenant"], 0) + int(fields["kib_ms"])
        for tenant, limit in self.limits.items():
            account = await self.account(tenant)
            life, used = (
                int(account.get(f"{name}_s", 0)) * 1000 + int(account.get(f"{name}_r", 0)) for name in ("life", "used")
            )
            held, level = int(account.get("held", 0)), int(account.get("level", 0))
            seen = sum(total for key, total in self.acknowledged.items() if key[2] == tenant)
            assert life == seen - forgiven.get(tenant, 0)
            assert used == life
            shards = await self._shards(tenant)
            assert held == sum(int(one.get("grant", 0)) for one in shards)
            assert level == sum(int(one.get("level", 0)) for one in shards)
            assert min(held, level, used) >= 0
            if limit is None:
                assert held == 0
                assert tenant not in forgiven
            else:
                assert used + held <= limit * 1000
            assert await self._hours(tenant) == life

    async def _ledger(self) -> list[tuple[str, dict[str, str]]]:
        found: Any = await self.redis.xrange(f"{PREFIX}ledger")
        return [(at, {k.decode(): v.decode() for k, v in fields.items()}) for at, fields in found]

    async def _shards(self, tenant: str) -> list[dict[str, str]]:
        found = []
        for engine in self.engines:
            fields: Any = await self.redis.hgetall(f"{PREFIX}shard:{tenant}:{engine.name}")
            found.append({k.decode(): v.decode() for k, v in fields.items()})
        return found

    async def _hours(self, tenant: str) -> int:
        total = 0
        names: Any = await self.redis.keys(f"{PREFIX}use:{tenant}:*")
        for name in names:
            fields: Any = await self.redis.hgetall(name)
            for field_name, value in fields.items():
                if field_name.endswith(b"|kv_s"):
                    total += int(value) * 1000
                elif field_name.endswith(b"|kv_r"):
                    total += int(value)
        return total
