"""What each account can count on while others want the device too: its part of the rows and of the pages.

What an account does not use others may borrow; it gets it back, at the expense of who has most beyond its own part.
"""

from __future__ import annotations

from collections.abc import Container

from engine.kv.manager import KVManager
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.sequence import Sequence


class Floors:
    """Who is below its part, and who gives way for it.

    Args:
        kv: The pool.
        roster: Who waits and who runs.
        shares: How much accounts weigh.
        num_rows: Sequences that may run at once.
    """

    def __init__(self, kv: KVManager, roster: Roster, shares: FairShares, num_rows: int) -> None:
        self._kv = kv
        self._roster = roster
        self._shares = shares
        self._num_rows = num_rows

    def covers(self, sequence: Sequence) -> bool:
        """True if an account stayed within its part of rows and pages with one more sequence of its own running."""
        account = sequence.payer.account
        part = self._shares.part(account, self._roster.accounts)
        num_rows = self._roster.rows_of[account] + 1
        num_pages = self._num_pages(account) + self._kv.pages_for(len(sequence.token_ids) + 1)
        return num_rows <= max(1.0, part * self._num_rows) and num_pages <= part * self._kv.num_pages

    def victim(self, sequence: Sequence, spared: Container[Sequence]) -> Sequence | None:
        """Who gives up its place for a sequence that its account's part covers; None if nobody has too much.

        What is taken is never more than was lent: two accounts cannot take the same place from each other in turn.

        Args:
            sequence: For whom.
            spared: Sequences that may not be taken out now.
        """
        account, accounts = sequence.payer.account, self._roster.accounts
        if len(accounts) < 2 or not self.covers(sequence):
            return None
        running = [one for one in self._roster.running if one not in spared and one.payer.account != account]
        others = {one.payer.account for one in running}
        num_pages = {other: self._num_pages(other) for other in others}
        over = self._shares.most_over(num_pages, self._kv.num_pages, accounts)
        if over is None:
            over = self._shares.most_over(
                {other: self._roster.rows_of[other] for other in others}, self._num_rows, accounts
            )
        mine = (one for one in running if one.payer.account == over)
        return max(mine, key=lambda one: one.order, default=None)

    def _num_pages(self, account: str) -> int:
        meter = self._kv.meter
        return meter.charge(account).level_kib // meter.page_kib
