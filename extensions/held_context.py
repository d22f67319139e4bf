"""A token history with KV in the engine: who pays for it, how long it is kept, what is exported of it."""

from __future__ import annotations

from typing import get_args

import msgspec

from engine.contexts.commands import ContextInfo, ExportContext
from engine.contexts.edits import Edit
from engine.leases.lease import OnPressure
from extensions.history import History
from extensions.leases import MAX_TTL_S, ContextLease


class HeldContext(History):
    """A history and what holds its KV; `LiveContext` computes on it."""

    _lease: ContextLease | None = None

    @property
    def account(self) -> str:
        """Who pays for it."""
        return self._link.account

    @property
    def num_computed(self) -> int:
        """Tokens whose KV the engine was left with when something was last computed, if it has not let go since."""
        return self._link.num_computed

    async def give_up(self) -> None:
        """Lets the engine take its KV for others, as if it had not been used for longest; it stays good.

        Nothing happens to one that something computes on, nor to one that somebody wishes to keep.
        """
        if not self._may_give_up:
            return
        await self.update_charge()
        if self._may_give_up:
            self._link.release()

    @property
    def _may_give_up(self) -> bool:
        is_kept = self._lease is not None and self._lease.ended is None
        return not (self._is_busy or self._is_released or is_kept)

    @property
    def kv_kib_ms(self) -> int:
        """What its KV was charged since it was opened, as far as the engine has told."""
        return self._link.kv_kib_ms

    async def charge(self) -> tuple[int, int]:
        """Bytes that it is charged for now, and KiB times milliseconds in all; asks the engine."""
        await self._link.describe()
        return self._link.charged_bytes, self._link.kv_kib_ms

    async def update_charge(self) -> None:
        """Asks what its KV was charged, unless that was told a moment ago."""
        if self._link.is_charge_old:
            await self._link.describe()

    async def retain(
        self, *, ttl_s: float, max_bytes: int, value: float = 0.5, on_pressure: OnPressure = "tokens"
    ) -> ContextLease:
        """Wishes to keep the KV while nobody computes on the context, instead of any wish before.

        Args:
            ttl_s: How long.
            max_bytes: Most KV that it holds for: a context that grows beyond it is kept no more.
            value: The chance that the context is used again, 0..1.
            on_pressure: What happens when others need the pages more: `host` moves them to host memory, `tokens` gives
                them up; `fail` too, and lets the next computation fail with `LeaseLost`; `release` all of them.

        Raises:
            ValueError: The context is released or busy, or an argument is out of range, or it holds more already.
            QuotaExceeded: Its account may hold no more.
            EngineStopped: No engine is there.
        """
        self._check()
        if not 0.0 < ttl_s <= MAX_TTL_S:
            raise ValueError(f"ttl_s must be positive, and at most {MAX_TTL_S:g}")
        if max_bytes < 1 or not 0.0 <= value <= 1.0:
            raise ValueError("max_bytes must be positive, and value between 0 and 1")
        if on_pressure not in get_args(OnPressure):
            raise ValueError(f"on_pressure must be one of {', '.join(get_args(OnPressure))}")
        if self._lease is not None:
            self._lease.forget()
        lease = self._lease = ContextLease(self._engine, self._link)
        context_id = self._link.sync(self.token_ids, self._edits)
        await lease.begin(context_id, ttl_s=ttl_s, max_bytes=max_bytes, value=value, on_pressure=on_pressure)
        return lease

    @property
    def edits(self) -> tuple[Edit, ...]:
        """Which of its tokens do not see which others."""
        return self._edits

    @property
    def adapter(self) -> str:
        """Name of the adapter that computes it; empty for the model alone."""
        return self._link.adapter

    def export(self, export_id: str, ttl_s: float) -> None:
        """Has the engine keep a fork of it that belongs to no gateway, and is charged to its account.

        Args:
            export_id: Name of the export, unique over all owners and times.
            ttl_s: How long it is kept.

        Raises:
            ValueError: The context is released or busy.
            EngineStopped: No engine is there.
        """
        self._check()
        context_id = self._link.sync(self.token_ids, self._edits)
        self._engine.tell(ExportContext(context_id, export_id, round(ttl_s * 1000)))

    def release(self) -> None:
        """Lets go of everything, a lease included. Idempotent."""
        if self._lease is not None:
            self._lease.forget()
        super().release()

    async def info(self) -> ContextInfo:
        """What the engine holds of it now.

        Raises:
            ValueError: The context is released.
        """
        if self._is_released:
            raise ValueError("the context is released")
        return msgspec.structs.replace(await self._link.describe(), length=self.length)
