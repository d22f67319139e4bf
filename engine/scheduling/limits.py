"""What becomes of accounts that may hold no more: they are asked to let go first, then refused, then ended."""

from __future__ import annotations

from engine.contexts.held import HeldContext
from engine.contexts.registry import ContextRegistry
from engine.errors import QuotaExceeded
from engine.kv.ceilings import Ceilings
from engine.kv.manager import KVManager
from engine.request import TokenEvent
from engine.scheduling.finishing import Finishing
from engine.scheduling.roster import Roster


class Limits:
    """Acts on `engine.kv.ceilings`, which only knows who has reached what.

    Args:
        kv: Its meter says what accounts were charged.
        roster: Who lives.
        contexts: Those on which nobody computes are let go of first.
        ceilings: What accounts may be charged.
        finishing: Ends those of an account that is over.
    """

    def __init__(
        self, kv: KVManager, roster: Roster, contexts: ContextRegistry, ceilings: Ceilings, finishing: Finishing
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._contexts = contexts
        self._ceilings = ceilings
        self._finishing = finishing

    def check(self, account: str, keep: HeldContext | None = None) -> None:
        """Refuses what an account may not hold, unless it fits once the account's idle contexts hold nothing.

        Args:
            account: Who asks for more.
            keep: A context that stays as it is all the same.

        Raises:
            QuotaExceeded: It may hold no more.
        """
        if self._ceilings:
            self._kv.meter.tick()
            if self._ceilings.has_reached(account):
                self._contexts.demote_account(account, keep)
                if self._ceilings.has_reached(account):
                    raise QuotaExceeded(account)

    def enforce(self) -> list[TokenEvent]:
        """Takes idle contexts from accounts at a ceiling, and ends what those run that are over; returns the ends."""
        events: list[TokenEvent] = []
        for account, is_over in self._ceilings.reached().items():
            self._contexts.demote_account(account)
            if is_over:
                running = [sequence for sequence in self._roster if sequence.payer.account == account]
                events += [
                    self._finishing.end_with(one, QuotaExceeded(account)) for one in running if not one.is_finished
                ]
        return events
