"""A lease on a live context: the wish to keep its KV while nobody computes on it, and word of its end."""

from __future__ import annotations

import uuid
from typing import Literal

from engine.client import EngineClient
from engine.contexts.commands import ContextInfo, EndLease, KeepContext, RetainContext
from engine.errors import EngineStopped, QuotaExceeded
from engine.leases.lease import LeaseRevoked, OnPressure
from extensions.context_link import ContextLink

Ended = Literal["pressure", "expired", "quota", "budget", "engine", "ended"]
"""Why a lease ended: see `engine.leases.lease.Reason`; or the engine went away, or its holder ended it."""

MAX_TTL_S = 7 * 86_400.0


async def hand_over(
    engine: EngineClient, link: ContextLink, *, ttl_s: float, max_bytes: int, value: float, max_kept: int
) -> ContextInfo:
    """Leaves a context to the engine, which keeps it under a lease of its own whatever becomes of this process.

    Args:
        engine: Which.
        link: To the context; it leads nowhere afterwards.
        ttl_s: How long it is kept.
        max_bytes: Most KV that it is kept for.
        value: The chance that a request begins with its history, 0..1.
        max_kept: Most contexts of its account that are kept so: the oldest give way to it.

    Returns:
        What is kept; nothing of it (`length` 0) if the engine has ended the context instead.

    Raises:
        EngineStopped: No engine is there.
    """
    context_id, lease_id = link.hand_over(), uuid.uuid4().hex
    if not context_id:
        raise EngineStopped("no engine knows the context")
    engine.tell(KeepContext(context_id, lease_id, round(ttl_s * 1000), max_bytes // 1024, value, max_kept))
    info = await engine.describe_context(context_id)
    return info if info.lease_id == lease_id else ContextInfo(length=0)


class ContextLease:
    """One lease; made by `LiveContext.retain`.

    Attributes:
        lease_id: Its name.
        ended: Why it is over; None while it is not.
    """

    def __init__(self, engine: EngineClient, link: ContextLink) -> None:
        self._engine = engine
        self._link = link
        self._context_id = ""
        self.lease_id = uuid.uuid4().hex
        self.ended: Ended | None = None

    async def begin(
        self, context_id: str, *, ttl_s: float, max_bytes: int, value: float, on_pressure: OnPressure
    ) -> None:
        """Asks the engine for it.

        Raises:
            ValueError: The context holds more than `max_bytes` already.
            QuotaExceeded: Its account may hold no more.
            EngineStopped: No engine is there.
        """
        self._context_id = context_id
        self._engine.watch_lease(self.lease_id, self._revoked)
        try:
            ttl_ms, max_kib = round(ttl_s * 1000), max_bytes // 1024
            self._engine.tell(RetainContext(context_id, self.lease_id, ttl_ms, max_kib, value, on_pressure))
            info = await self._link.describe()
            if info.lease_id != self.lease_id and self.ended is None:
                held = info.num_pages * self._engine.info.page_kib
                if held > max_kib:
                    raise ValueError(f"the context holds {held * 1024} bytes already, more than max_bytes")
                if not self._link.is_open:
                    raise EngineStopped("the engine went away")
                raise QuotaExceeded(self._link.account)
        except BaseException:
            self._engine.unwatch_lease(self.lease_id)
            raise

    def end(self) -> None:
        """Ends it: the context stays, as one that nobody wishes to keep. Idempotent."""
        if self.ended is None:
            self.ended = "ended"
            self._engine.unwatch_lease(self.lease_id)
            if self._link.is_open:
                self._engine.tell(EndLease(self._context_id, self.lease_id))

    def forget(self) -> None:
        """The context is released, and the lease with it."""
        if self.ended is None:
            self.ended = "ended"
            self._engine.unwatch_lease(self.lease_id)

    def _revoked(self, news: LeaseRevoked) -> None:
        self.ended = news.reason
        self._engine.unwatch_lease(self.lease_id)
