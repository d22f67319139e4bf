"""Whose turn it is to enter, and what must be free for it; `engine.scheduling.admission` lets one in."""

from __future__ import annotations

from collections.abc import Iterable

from engine.forward.lockstep import portions
from engine.kv.ceilings import Ceilings
from engine.kv.manager import KVManager
from engine.scheduling.admission import Admission
from engine.scheduling.batch import Batch
from engine.scheduling.floors import Floors
from engine.scheduling.lanes import LaneBuilder
from engine.scheduling.pace import Pace
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.scheduling.yielding import Yielding
from engine.sequence import Sequence


class Entering:
    """Fills what is left of a step with those who wait.

    Args:
        kv: The pool.
        roster: Who waits.
        shares: Whose turn it is among accounts.
        ceilings: Accounts that may hold no more.
        floors: What accounts can count on.
        pace: How much of their prompts a short step may compute.
        admission: Lets one in.
        lanes: Makes lanes.
        yielding: Makes room.
        max_batch_tokens: Tokens of one step.
    """

    def __init__(
        self,
        kv: KVManager,
        roster: Roster,
        shares: FairShares,
        ceilings: Ceilings,
        floors: Floors,
        pace: Pace,
        admission: Admission,
        lanes: LaneBuilder,
        yielding: Yielding,
        max_batch_tokens: int,
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._shares = shares
        self._ceilings = ceilings
        self._floors = floors
        self._pace = pace
        self._admission = admission
        self._lanes = lanes
        self._yielding = yielding
        self._max_batch_tokens = max_batch_tokens

    def admit_urgent(self, batch: Batch) -> bool:
        """Gives a step to newcomers alone whose accounts have had no more of the device than any other.

        Whoever asks for little is not to wait behind the lanes of who asks for much; the others go on with the next
        step, for then those are ahead.

        Returns:
            False if there are none, or none has entered.
        """
        if len(self._roster.accounts) < 2 or not self._roster.running:
            return False
        waiting = {sequence.payer.account for sequence in self._roster.waiting}
        urgent = self._shares.urgent(waiting, self._roster.rows_of)
        if urgent:
            self.admit(batch, only=urgent)
        return bool(batch.lanes)

    def admit(self, batch: Batch, only: frozenset[str] | None = None) -> None:
        """Lets those who wait enter, in order, while seats, pages and budget last; those of some accounts `only`.

        Where several accounts want the device, each takes its turn; one that cannot have what its next sequence needs
        holds up only those that have their part already.
        """
        waiting: Iterable[Sequence] = list(self._roster.waiting)
        several = len(self._roster.accounts) > 1
        if several:
            waiting = self._shares.order(self._roster.waiting)
        blocked: set[str] = set()
        entered: set[Sequence] = set()
        for sequence in waiting:
            if batch.num_tokens >= self._max_batch_tokens:
                return
            if sequence.group is not None and sequence.group.first is not sequence:
                continue  # they enter with their first
            account = sequence.payer.account
            if only is not None and account not in only:
                continue
            if account in blocked or not self._pace.may_compute(account) or not self._may_enter(sequence):
                continue
            if blocked and not self._floors.covers(sequence):
                continue
            if not self._enter(batch, sequence, entered):
                if not several:
                    return
                blocked.add(account)

    def _may_enter(self, sequence: Sequence) -> bool:
        """False while it, or one that draws together with it, is at its account's ceiling or waits for another."""
        for member in sequence.members:
            if self._ceilings.has_reached(member.payer.account) or not self._admission.is_ready(member):
                return False
        return True

    def _enter(self, batch: Batch, sequence: Sequence, entered: set[Sequence]) -> bool:
        """Lets one enter that waits, and those that draw together with it; False, and nobody, where there is no room.

        Rows and pages are free ones, those of who pauses, those of who has too much.
        """
        members = sequence.members
        while self._roster.num_free_rows < len(members):
            if not self._make_room(batch, sequence, entered):
                return False
        joined: list[Sequence] = []
        rows = []
        for member in members:
            while not self._admission.can_enter(member, joined):
                if not self._make_room(batch, member, entered.union(joined)):
                    for one in joined:
                        self._yielding.suspend(one)
                    return False
            rows.append(self._admission.enter(member))
            joined.append(member)
        batch.assigned_rows += rows
        entered.update(joined)
        budget = self._max_batch_tokens - batch.num_tokens
        parts = [(sequence, self._lanes.chunk(sequence, budget))]
        if sequence.group is not None:
            parts = portions(sequence.group, budget, self._lanes.chunk)
        for member, count in parts:
            assert member.table is not None
            start = member.num_scheduled - member.num_dropped
            self._lanes.append(batch, member, count, copies=self._kv.reserve(member.table, start, start + count))
        return True

    def _make_room(self, batch: Batch, sequence: Sequence, spared: set[Sequence]) -> bool:
        """Takes one out for one that wants to enter, if anybody is to give way to it."""
        return self._yielding.park_one() or self._yielding.take_back(batch, sequence, spared)
