"""Histories that are kept under a lease beyond whoever made them, for requests that begin the same.

They are the engine's own: no gateway can compute on one or end it, and the end of a gateway is nothing to them. Their
accounts pay while they are held. One ends with its lease, when a longer history begins the same, or when its account
wants more of them kept than it may; its whole pages stay in the prefix cache, as those of any context.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.contexts.commands import KeepContext, RetainContext
from engine.contexts.held import HeldContext
from engine.leases.book import LeaseBook


class KeptHistories:
    """Kept contexts by account, the oldest first, among the contexts of a registry.

    Args:
        leases: What holds their KV.
        forget: Ends a context.
    """

    def __init__(self, leases: LeaseBook, forget: Callable[[HeldContext], None]) -> None:
        self._leases = leases
        self._forget = forget
        self._kept: dict[str, list[HeldContext]] = {}
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, context_id: str) -> bool:
        return context_id in self._ids

    def keep(self, context: HeldContext, command: KeepContext) -> None:
        """Takes over a context on which nobody computes; one that holds more than it may is ended at once."""
        account = context.payer.account
        lease = RetainContext(
            context.context_id, command.lease_id, command.ttl_ms, command.max_kib, command.value, "tokens"
        )
        self._leases.retain(context, lease)
        if context.lease is None or command.max_kept < 1:
            self._forget(context)
            return
        for other in [one for one in self._kept.get(account, ()) if _covers(context, one)]:
            if other.lease is not None:
                # The next turn of a conversation: what was said of the chance that it comes has come true.
                other.lease.was_used = True
            self._release(other)
        while len(self._kept.get(account, ())) >= command.max_kept:
            self._release(self._kept[account][0])
        self._kept.setdefault(account, []).append(context)
        self._ids.add(context.context_id)

    def tend(self) -> None:
        """Ends those whose lease is over, for whatever reason."""
        for context in [one for kept in self._kept.values() for one in kept if one.lease is None]:
            self._release(context)

    def _release(self, context: HeldContext) -> None:
        kept = self._kept[context.payer.account]
        kept.remove(context)
        if not kept:
            del self._kept[context.payer.account]
        self._ids.discard(context.context_id)
        self._forget(context)


def _covers(new: HeldContext, old: HeldContext) -> bool:
    """Whether a history is the beginning of another one, so that holding it is of no more use."""
    length = len(old.token_ids)
    if (new.salt, new.adapter) != (old.salt, old.adapter) or len(new.token_ids) < length:
        return False
    # Most differ at their ends: that is seen without a copy of a long history.
    return new.token_ids[length - 1] == old.token_ids[-1] and new.token_ids[:length] == old.token_ids
