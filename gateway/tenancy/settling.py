"""What engines count is charged to tenants, and what tenants have left is granted to engines: a heartbeat at a time.

Every gateway process sees the engine's numbers; one of them, chosen in Redis, passes them on. Two would do no harm.
While Redis is away an engine goes on with what it has been granted, and tenants without a quota with anything.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from engine.kv.commands import SetCeilings, SetShares
from engine.request import EngineInfo
from engine.stats import AccountCharge
from gateway.errors import QuotaStoreUnavailable
from gateway.state.quotas import QuotaStore, Report, Settled
from gateway.state.tasks import end_task
from gateway.state.tenancy import TenancyStore
from gateway.tenancy.limits import TenantLimits
from gateway.tenancy.principal import TENANT_MARK
from gateway.tenancy.windows import ends_ms, rolling_s

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""Seconds between heartbeats: what is lost at most when an engine dies."""

LEASE_S = 10.0
"""An engine that was not heard of for so long is given up, and what it was granted is free again."""

LEAD_S = 4.0
"""Another process settles when the one that did has said nothing for so long."""

NUM_BEATS_AHEAD = 4
"""Heartbeats that a grant lasts at the present level, so that an engine that lives never runs dry."""

FEW_ENDS = 6
"""The store is told more ends of windows when it knows no more than these."""

SHARES_EVERY = 10
"""Heartbeats between looks at the weights of tenants."""


_STOPPED = frozenset({"suspended", "archived", "stale"})
"""States in which an engine may spend nothing: what runs ends too."""


class Engine(Protocol):
    """What is asked of an engine's door; see `engine.client.EngineClient`."""

    @property
    def is_ready(self) -> bool:
        """True while an engine is connected."""
        ...

    @property
    def info(self) -> EngineInfo:
        """What it is."""
        ...

    @property
    def charges(self) -> Mapping[str, AccountCharge]:
        """What the KV of each account has come to."""
        ...

    def tell(self, command: SetCeilings | SetShares) -> None:
        """Passes on a command."""
        ...


class Settler:
    """Settles for one engine. Belongs to one event loop.

    Args:
        engine: The engine's door.
        quotas: Accounts of tenants.
        store: Records of tenants.
        host: Where the engine runs, as engines are told apart.
    """

    def __init__(self, engine: Engine, quotas: QuotaStore, store: TenancyStore, host: str = "") -> None:
        self._engine = engine
        self._quotas = quotas
        self._store = store
        self._host = (host or socket.gethostname()).replace("/", "_")
        self._name = uuid.uuid4().hex
        self._running: asyncio.Task[None] | None = None
        self._limited: set[str] = set()
        self._weights: dict[str, float] = {}
        self._levels: dict[str, int] = {}
        self._incarnation = 0
        self._num_beats = 0
        self._is_store_away = False

    def start(self) -> None:
        """Begins to settle. Idempotent."""
        if self._running is None:
            self._running = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Settles no more. Idempotent."""
        running, self._running = self._running, None
        await end_task(running)

    async def beat(self) -> bool:
        """One heartbeat; false if there is no engine, or another process settles for it.

        Raises:
            QuotaStoreUnavailable: Redis did not answer.
        """
        if not self._engine.is_ready:
            return False
        info = self._engine.info
        # Another start is another engine: what the one before was granted is free when its lease is over.
        name = f"{self._host}-{info.incarnation}"
        if not await self._quotas.lead(name, self._name, int(LEAD_S * 1000)):
            return False
        if info.incarnation != self._incarnation:
            self._incarnation, self._limited, self._num_beats = info.incarnation, set(), 0
            self._weights, self._levels = {}, {}
        await self._quotas.reap()
        settled = await self._quotas.report(
            name,
            info.incarnation,
            await self._reports(),
            lease_ms=int(LEASE_S * 1000),
            seed_kib_ms=info.num_pages * info.page_kib * int(NUM_BEATS_AHEAD * BEAT_S * 1000),
        )
        self._tell_ceilings(settled)
        await self._tell_windows(settled)
        if self._num_beats % SHARES_EVERY == 0:
            await self._tell_records()
        self._num_beats += 1
        return True

    async def _reports(self) -> list[Report]:
        charges = self._engine.charges
        tenants = {account for account in charges if account.startswith(TENANT_MARK)}
        # One that had a quota is reported once more, so that what it was granted is free again.
        tenants.update(await self._quotas.limited(), self._limited)
        return [_report(tenant, charges.get(tenant)) for tenant in sorted(tenants)]

    def _tell_ceilings(self, settled: Sequence[Settled]) -> None:
        ceilings = {one.tenant: one.ceiling_kib_ms for one in settled if one.ceiling_kib_ms >= 0}
        ceilings |= {one.tenant: 0 for one in settled if one.state in _STOPPED}
        freed = self._limited - ceilings.keys()
        self._limited = set(ceilings)
        if ceilings or freed:
            self._engine.tell(SetCeilings(ceilings | dict.fromkeys(freed, -1)))

    async def _tell_windows(self, settled: Sequence[Settled]) -> None:
        for one in settled:
            if one.state == "gone" or one.num_known_ends == -1 or one.num_known_ends > FEW_ENDS:
                continue
            record = await self._store.tenant(one.tenant)
            if record is None:
                continue
            window = TenantLimits.of(record).kv_window
            ends = [] if rolling_s(window) else ends_ms(window, time.time_ns() // 1_000_000)
            await self._quotas.set_window(one.tenant, window, ends)

    async def _tell_records(self) -> None:
        """What the records of tenants say that changes seldom: weights, and how much may be held at once."""
        records = await self._store.tenants()
        limits = {tenant: TenantLimits.of(record) for tenant, record in records}
        weights = {tenant: float(one.weight) for tenant, one in limits.items() if one.weight is not None}
        shadows = {tenant for tenant, record in records if record["state"] == "shadow"}
        levels = {
            tenant: one.resident_kib
            for tenant, one in limits.items()
            if one.resident_kib is not None and tenant not in shadows
        }
        if levels != self._levels:
            self._engine.tell(SetCeilings({}, dict.fromkeys(self._levels, -1) | levels))
            self._levels = levels
        if weights != self._weights:
            self._weights = weights
            self._engine.tell(SetShares(weights))

    async def _run(self) -> None:
        while True:
            try:
                await self.beat()
                if self._is_store_away:
                    log.info("the store of quotas is back")
                self._is_store_away = False
            except QuotaStoreUnavailable as error:
                if not self._is_store_away:
                    log.warning("nothing is settled for now: %s", error)
                self._is_store_away = True
            except Exception:
                log.exception("settling failed; it is tried again")
            await asyncio.sleep(BEAT_S)


def _report(tenant: str, charge: AccountCharge | None) -> Report:
    if charge is None:
        return Report(tenant, 0, 0, 0)
    need = charge.level_kib * int(NUM_BEATS_AHEAD * BEAT_S * 1000)
    return Report(tenant, charge.total_kib_ms, charge.level_kib, need)
