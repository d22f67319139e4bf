"""Held contexts in host memory: saved when others need their pages, back by a copy or by computing.

Never wrong: a copy counts as there once the device has made it, and tokens that it brings back count as computed once
the step that it came with has run.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.contexts.edits import num_dropped
from engine.contexts.held import HeldContext
from engine.kv.manager import KVManager, PrefixName
from engine.kv.tiers import HostTier, Transfer
from engine.leases.costs import RestoreCosts
from engine.sequence import Sequence


class Plan(NamedTuple):
    """How a context comes back from host memory.

    Attributes:
        name: Of its whole history; the prefix cache may have the beginning of it.
        num_tokens: Tokens that it has then.
        num_found: Pages that the prefix cache has.
    """

    name: PrefixName
    num_tokens: int
    num_found: int


class ContextHosting:
    """Saves and restores.

    Args:
        kv: The pool.
        tier: Host memory.
        costs: What copying and computing take.
    """

    def __init__(self, kv: KVManager, tier: HostTier, costs: RestoreCosts) -> None:
        self._kv = kv
        self._tier = tier
        self._costs = costs

    def can_save(self, context: HeldContext) -> bool:
        """True if there is room for its pages."""
        return context.table is not None and len(context.table.pages) <= self._tier.num_free

    def save(self, context: HeldContext) -> None:
        """Has the pages of an idle context copied; it still has them afterwards."""
        assert context.table is not None
        self.drop(context)
        context.host = self._tier.save(context.table.pages, context.payer)
        context.num_hosted, context.hosted_gaps = context.num_computed, list(context.gaps)

    def drop(self, context: HeldContext) -> None:
        """Gives up the host copy of a context, if it has one."""
        if context.host is not None:
            self._tier.free(context.host)
            context.host = None
        context.num_hosted, context.hosted_gaps = 0, []

    def cut(self, context: HeldContext, length: int, *, is_edited: bool) -> None:
        """A history was cut, or its edits have changed: what is left of the host copy must still be true."""
        if context.host is None:
            return
        if is_edited or (context.hosted_gaps and length < context.num_hosted):
            self.drop(context)
        elif length < context.num_hosted:
            context.num_hosted = length
            self._tier.free(context.host, keep=self._kv.pages_for(length))
            if not length:
                self.drop(context)

    def plan(self, sequence: Sequence, name: PrefixName) -> Plan | None:
        """How the context of a waiting sequence comes back; None if other ways are as good, and its copy is given up.

        Args:
            sequence: One whose context has no pages, or fewer than its copy.
            name: Of its history.
        """
        context = sequence.context
        assert context is not None
        if context.host is None:
            return None
        num_tokens = min(context.num_hosted, sequence.num_reusable)
        if context.hosted_gaps:
            # What the cache has lies where it would without gaps: it cannot stand before what was saved with them.
            name = PrefixName(name.root, name.num_tokens, [])
        num_found = self._kv.num_cached(name)
        size = self._kv.page_size
        start = max(context.num_computed, num_found * size)
        if start >= num_tokens or context.host.saved.failed:
            self.drop(context)
            return None
        num_pages = self._kv.pages_for(num_tokens - num_dropped(context.hosted_gaps)) - num_found
        num_bytes = num_pages * self._kv.meter.page_kib * 1024
        if self._costs.copy_s(num_bytes) > self._costs.compute_s(start, num_tokens):
            self.drop(context)
            return None
        return Plan(name, num_tokens, num_found)

    def restore(self, sequence: Sequence, plan: Plan) -> int:
        """Gives a context that has no pages those of its copy, and returns how many tokens it lacked for that."""
        context = sequence.context
        assert context is not None
        assert context.host is not None
        assert context.table is None
        table, num_held = self._kv.open(plan.name, expected_tokens=sequence.max_total, payer=context.payer)
        gaps = context.hosted_gaps
        copies = self._kv.reserve(table, num_held, plan.num_tokens - num_dropped(gaps))
        assert not copies
        first = num_held // self._kv.page_size
        self._tier.restore(context.host, first, table.pages[first:])
        context.host = None
        context.table, context.num_computed = table, plan.num_tokens
        context.set_gaps(gaps)
        context.num_hosted, context.hosted_gaps = 0, []
        return num_held


def failed(transfers: list[Transfer]) -> None:
    """A step has failed: copies that were to be made with it and were not are void."""
    for transfer in transfers:
        transfer.failed = not transfer.is_done
