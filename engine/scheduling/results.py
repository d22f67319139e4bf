"""What a step gave its lanes, and what that makes of their sequences."""

from __future__ import annotations

from engine.attention.scores import add_scores
from engine.constraints.constraint import ConstraintBroken
from engine.drafting.drafter import GivenGuesses
from engine.drafting.planning import DraftPlanner
from engine.errors import ProgramFailed
from engine.forward.lockstep import LaneGroup
from engine.kv.manager import KVManager
from engine.request import TokenEvent
from engine.scheduling.batch import Lane, LaneResult
from engine.scheduling.finishing import Finishing
from engine.scheduling.plain import take_plain
from engine.scheduling.roster import Roster
from engine.scheduling.stepping import Stepping
from engine.sequence import Sequence
from engine.stats import EngineStats


class Results:
    """Takes results in, lane by lane, in the order of their step.

    Args:
        kv: Learns which pages others may share.
        roster: Pauses those that wait for a guess of their caller.
        drafts: Knows how long that guess may be.
        stepping: Keeps what is only proposed.
        finishing: Appends what was drawn.
        totals: Counts tokens.
    """

    def __init__(
        self,
        kv: KVManager,
        roster: Roster,
        drafts: DraftPlanner,
        stepping: Stepping,
        finishing: Finishing,
        totals: EngineStats,
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._drafts = drafts
        self._stepping = stepping
        self._finishing = finishing
        self._totals = totals

    def take(self, lane: Lane, result: LaneResult) -> TokenEvent | None:
        """Takes in what one lane gave; None if there is nothing to tell its caller."""
        sequence = lane.sequence
        if not sequence.is_running or lane.run != sequence.runs:
            return None  # it ended, or gave its pages back and will compute this again
        if sequence.is_plain and lane.samples and result.token_id is not None:
            event = take_plain(sequence, lane, result.token_id)
            if event is not None:
                self._totals.num_decode_tokens += 1
                return event
        self._commit(lane, result)
        if sequence.group is not None:
            is_whole = lane.samples and sequence is sequence.group.last
            return self._accept_all(sequence.group, result) if is_whole else None
        if lane.proposes:
            return self._stepping.propose(sequence, result)
        if lane.samples:
            return self._accept(sequence, lane, result)
        if sequence.num_computed == sequence.max_total:
            return self._finishing.complete_prompt(sequence)
        return None

    def _commit(self, lane: Lane, result: LaneResult) -> None:
        """What the lane computed is there now."""
        sequence = lane.sequence
        assert sequence.table is not None
        sequence.num_computed = lane.stop
        if sequence.request.stepped:
            self._stepping.commit(sequence)
        if lane.drafts:
            self._settle(sequence, lane, result)
        if result.prompt_logprobs:
            sequence.prompt_logprobs.extend(result.prompt_logprobs)
        if result.rows:
            sequence.rows.extend(result.rows)
        if result.attention and sequence.request.attention is not None:
            add_scores(sequence.attention, result.attention, sequence.request.attention)
        if result.pooled is not None:
            sequence.pool(result.pooled)
        if lane.start < sequence.num_prompt:
            self._totals.num_prefill_tokens += lane.num_tokens
            if lane.stop >= sequence.num_prompt:
                num_plain = lane.stop if sequence.context is None else min(lane.stop, sequence.context.num_plain)
                self._kv.publish(sequence.table, sequence.token_ids[:num_plain])

    def _settle(self, sequence: Sequence, lane: Lane, result: LaneResult) -> None:
        """Guesses that were wrong were never there: what comes next is written over them."""
        num_right = len(result.further)
        sequence.num_computed -= len(lane.drafts) - num_right
        sequence.num_scheduled = sequence.num_computed
        sequence.copied_to = min(sequence.copied_to, sequence.num_computed)
        self._totals.num_drafted_tokens += len(lane.drafts)
        self._totals.num_accepted_tokens += num_right

    def _accept(self, sequence: Sequence, lane: Lane, result: LaneResult) -> TokenEvent:
        """Appends what was drawn, and ends the sequence if that is its last."""
        assert result.token_id is not None
        if result.token_id < 0:
            return self._finishing.end_with(sequence, ProgramFailed())
        token_ids = [result.token_id, *(token_id for token_id, _ in result.further)]
        if sequence.constraint is not None:
            try:
                sequence.constraint.advance(token_ids)
            except ConstraintBroken as error:
                return self._finishing.end_with(sequence, error)
        sequence.num_in_flight -= 1
        event = self._finishing.append(sequence, token_ids)
        if result.logprob is not None:
            event.logprobs = [result.logprob, *(logprob for _, logprob in result.further if logprob is not None)]
        if lane.drafts:
            event.num_drafted, event.num_accepted = len(lane.drafts), len(result.further)
        if result.probes is not None:
            event.probes = [result.probes]
        if sequence.attention:
            event.attention = [one.astype("<f4").tobytes() for one in sequence.attention]
        if event.finish_reason is None and isinstance(sequence.drafter, GivenGuesses):
            event.num_wanted = self._drafts.most(sequence)
            if event.num_wanted:
                self._roster.pause(sequence)
        return event

    def _accept_all(self, group: LaneGroup, result: LaneResult) -> TokenEvent:
        """Appends the token that all lanes of a group drew, and ends them if it is the last."""
        assert result.token_id is not None
        if result.token_id < 0:
            return self._finishing.end_with(group.first, ProgramFailed())
        if group.first.constraint is not None:
            try:
                group.first.constraint.advance([result.token_id])
            except ConstraintBroken as error:
                return self._finishing.end_with(group.first, error)
        for member in group.members:
            member.num_in_flight -= 1
            if member is not group.first:
                member.token_ids.append(result.token_id)
        event = self._finishing.append(group.first, [result.token_id])
        if result.probes is not None:
            event.probes = [result.probes]
        event.attention = [one.astype("<f4").tobytes() for member in group.members for one in member.attention]
        return event
