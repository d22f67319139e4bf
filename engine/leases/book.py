"""All leases of one engine, and which context gives way first.

Of two contexts the one gives way whose pages are expected to save less work for the time that they are kept:

    chance that it is used again x seconds to compute it again / (KiB it pays for x time until then)

Leases say what the chance is, and are believed as far as those of the same account came true; of contexts without one
it is what that account's were used again so far. Among equals the longest unused gives way first.
"""

from __future__ import annotations

from engine.contexts.commands import RetainContext
from engine.contexts.held import HeldContext
from engine.kv.meter import KVMeter
from engine.leases.costs import RestoreCosts
from engine.leases.lease import Lease, LeaseRevoked, Reason
from engine.leases.reuse import ReuseHistory


class LeaseBook:
    """Leases by context.

    Args:
        meter: Its clock is that of leases.
        costs: What it takes to compute a context again.

    Attributes:
        revoked: Leases that ended before their holders ended them, since somebody last took these news.
        reuse: What hints were worth.
        num_revoked: Leases that ended so, so far.
    """

    def __init__(self, meter: KVMeter, costs: RestoreCosts) -> None:
        self._meter = meter
        self._costs = costs
        self._leased: dict[HeldContext, Lease] = {}
        self.reuse = ReuseHistory()
        self.revoked: list[LeaseRevoked] = []
        self.num_revoked = 0

    def __len__(self) -> int:
        return len(self._leased)

    def retain(self, context: HeldContext, command: RetainContext) -> None:
        """Begins a lease, instead of the one that there may be; none that would be beyond its budget at once."""
        if context.lease is not None:
            self._end(context)
        if context.payer.tally.level * self._meter.page_kib > command.max_kib:
            return
        self._meter.tick()
        ends_at = self._meter.now + command.ttl_ms
        lease = Lease(command.lease_id, command.value, ends_at, command.max_kib, command.on_pressure)
        context.lease = self._leased[context] = lease
        context.refusal = None

    def end(self, context: HeldContext, lease_id: str) -> None:
        """Ends a lease because its holder wants that; another one of the context goes on."""
        if context.lease is not None and context.lease.lease_id == lease_id:
            self._end(context)

    def revoke(self, context: HeldContext, reason: Reason) -> None:
        """Ends the lease of a context against its holder's will, if it has one."""
        lease = context.lease
        if lease is None:
            return
        news = LeaseRevoked(context.context_id, lease.lease_id, reason)
        if lease.on_pressure in ("fail", "release") and reason != "expired":
            context.refusal, context.refuses_always = news, lease.on_pressure == "release"
        self._end(context)
        self.revoked.append(news)
        self.num_revoked += 1

    def due(self) -> list[tuple[HeldContext, Reason]]:
        """Contexts whose leases are over now, and why."""
        now, page_kib = self._meter.now, self._meter.page_kib
        found: list[tuple[HeldContext, Reason]] = []
        for context, lease in self._leased.items():
            if now >= lease.ends_at:
                found.append((context, "expired"))
            elif context.payer.tally.level * page_kib > lease.max_kib:
                found.append((context, "budget"))
        return found

    # -- what is used again -----------------------------------------------------------------------------------------

    def idle(self, context: HeldContext) -> None:
        """Nobody computes on a context any more."""
        context.idle_since = self._meter.now

    def used(self, context: HeldContext) -> None:
        """Somebody computes on a context."""
        if context.lease is not None:
            context.lease.was_used = True
        self._note_kept(context, was_used=True)

    def forgotten(self, context: HeldContext) -> None:
        """A context has ended."""
        if context.lease is not None:
            self._end(context)
        self._note_kept(context, was_used=False)

    def value(self, context: HeldContext) -> float:
        """Expected seconds saved per KiB and millisecond, if a context is kept; 0 if it pays for nothing."""
        num_pages = context.payer.tally.level
        if not num_pages:
            return 0.0
        account, lease = context.payer.account, context.lease
        chance = self.reuse.chance(account, None if lease is None else lease.value, self._idle_ms(context))
        saved_s = self._costs.compute_s(0, max(context.num_computed, context.num_hosted))
        return chance * saved_s / (num_pages * self._meter.page_kib * self.reuse.delay_ms(account))

    # ---------------------------------------------------------------------------------------------------------------

    def _end(self, context: HeldContext) -> None:
        lease, context.lease = context.lease, None
        assert lease is not None
        del self._leased[context]
        self.reuse.note_lease(context.payer.account, lease.value, was_used=lease.was_used)

    def _note_kept(self, context: HeldContext, *, was_used: bool) -> None:
        if context.idle_since is not None:
            self.reuse.note_kept(context.payer.account, was_used=was_used, delay_ms=self._idle_ms(context))
            context.idle_since = None

    def _idle_ms(self, context: HeldContext) -> int:
        return 0 if context.idle_since is None else self._meter.now - context.idle_since
