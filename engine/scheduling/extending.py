"""The lanes of those who run already: decoding ones first, then what is left of their prompts."""

from __future__ import annotations

from collections.abc import Container
from collections.abc import Sequence as ListOf

from engine.contexts.registry import ContextRegistry
from engine.drafting.planning import DraftPlanner
from engine.forward.lockstep import LaneGroup, portions
from engine.kv.manager import KVManager
from engine.scheduling.batch import Batch
from engine.scheduling.lanes import LaneBuilder
from engine.scheduling.plain import plain_lane
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.scheduling.stepping import Stepping
from engine.scheduling.yielding import Yielding
from engine.sequence import Sequence


class Extending:
    """Gives running sequences their lanes; where pages are short, those with the weakest claim yield.

    Args:
        kv: The pool.
        roster: Who runs.
        contexts: Idle ones give up their pages first.
        shares: Whose prompts go first.
        drafts: Guesses tokens.
        stepping: Knows who waits for its caller.
        lanes: Makes lanes.
        yielding: Takes sequences out.
        max_batch_tokens: Tokens of one step.
    """

    def __init__(
        self,
        kv: KVManager,
        roster: Roster,
        contexts: ContextRegistry,
        shares: FairShares,
        drafts: DraftPlanner,
        stepping: Stepping,
        lanes: LaneBuilder,
        yielding: Yielding,
        max_batch_tokens: int,
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._contexts = contexts
        self._shares = shares
        self._drafts = drafts
        self._stepping = stepping
        self._lanes = lanes
        self._yielding = yielding
        self._max_batch_tokens = max_batch_tokens

    def extend_all(self, batch: Batch, held_back: Container[Sequence]) -> int:
        """Gives every running sequence its lane, as the budget lets it, but for those held back.

        Returns:
            How many had to yield for others.
        """
        prefilling: list[Sequence] = []
        num_preempted = 0
        for sequence in tuple(self._roster.running):
            if not sequence.is_running or sequence in held_back:
                continue  # it yielded to one before it, or it is not its turn
            if sequence.is_plain:
                lane = plain_lane(sequence, self._kv)
                if lane is not None:
                    batch.append(lane)
                    continue
            if sequence.group is not None:
                if sequence.group.first is sequence:
                    num_preempted += self._extend_group(batch, sequence.group, prefilling)
                continue
            if self._waits_for_caller(sequence):
                continue
            num_pending = sequence.num_pending
            if num_pending == 1:
                num_preempted += self._extend(batch, sequence)
            elif num_pending > 1:
                prefilling.append(sequence)
        if len(self._roster.accounts) > 1:
            prefilling = list(self._shares.order(prefilling))
        for sequence in prefilling:
            if not sequence.is_running:
                continue
            if sequence.group is None:
                num_preempted += self._extend(batch, sequence)
            else:
                num_preempted += self._extend_group(batch, sequence.group)
        return num_preempted

    def _waits_for_caller(self, sequence: Sequence) -> bool:
        """True while its caller has yet to guess or to decide, or what it guesses from is not known."""
        is_guessing = sequence.drafter is not None and sequence.drafter.waits
        if is_guessing and (sequence.num_in_flight > 0 or self._roster.is_paused(sequence)):
            return True
        return sequence.request.stepped and not self._stepping.may_go_on(sequence)

    def _extend_group(self, batch: Batch, group: LaneGroup, later: list[Sequence] | None = None) -> int:
        """Lanes of sequences that draw together; those with a prompt to compute wait in `later`, if that is given.

        Returns:
            How many had to yield for them.
        """
        if later is not None and not group.is_level:
            later.append(group.first)
            return 0
        num_preempted = 0
        for member, count in portions(group, self._max_batch_tokens - batch.num_tokens, self._lanes.chunk):
            num_preempted += self._extend(batch, member, count)
            if not member.is_running:
                break  # they yielded, all of them
        return num_preempted

    def _extend(self, batch: Batch, sequence: Sequence, count: int | None = None) -> int:
        """Gives a running sequence its lane, if the budget lets it; returns how many had to yield for it."""
        if count is None:
            count = self._lanes.chunk(sequence, self._max_batch_tokens - batch.num_tokens)
        if count == 0:
            return 0
        assert sequence.table is not None
        start = sequence.num_scheduled - sequence.num_dropped
        drafts = self._guess(batch, sequence, start) if sequence.drafter is not None and count == 1 else ()
        stop = start + count + len(drafts)
        if stop == start + 1 and self._kv.owns(sequence.table, start):
            self._lanes.append(batch, sequence, count, copies=())
            return 0
        num_preempted = 0
        if sequence.proposal is not None and not self._kv.can_reserve(sequence.table, start, stop):
            self._roster.pause(sequence)  # nobody gives way to a guess
            return 0
        while not self._kv.can_reserve(sequence.table, start, stop):
            if self._contexts.demote_one() or self._yielding.park_one():
                continue
            self._yielding.preempt_last(batch)
            num_preempted += 1
            if not sequence.is_running:
                return num_preempted
        copies = self._kv.reserve(sequence.table, start, stop)
        offers = sequence.drafter.offers if drafts and sequence.drafter is not None else ()
        self._lanes.append(batch, sequence, count, copies=copies, drafts=drafts, offers=offers)
        return num_preempted

    def _guess(self, batch: Batch, sequence: Sequence, start: int) -> ListOf[int]:
        """Tokens to verify behind the one that a sequence computes, if there is room for them without a sacrifice."""
        assert sequence.table is not None
        budget = self._max_batch_tokens - len(self._roster.running) - batch.num_drafts
        drafts = self._drafts.propose(sequence, batch, budget, len(self._roster.running))
        fits = drafts and self._kv.can_reserve(sequence.table, start, start + 1 + len(drafts))
        return drafts if fits else ()
