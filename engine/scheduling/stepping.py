"""Sequences that pause after a draw, until their caller has said which token to take.

    schedule ─▶ draw ─▶ propose ──────────▶ paused ──advance──▶ token appended ─▶ schedule ...
                (or taken by itself, up to `Sequence.take_until`)

A paused sequence has nothing to compute, so it is simply absent from steps, and nobody waits for it. It keeps its pages
and its row until somebody needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf

import msgspec

from engine.constraints.constraint import ConstraintBroken
from engine.errors import EngineError, InvalidRequest
from engine.reports import report
from engine.request import TokenEvent
from engine.scheduling.batch import LaneResult
from engine.scheduling.events import make_event
from engine.scheduling.roster import Roster
from engine.sequence import Sequence


class Stepping:
    """Proposals and what becomes of them.

    Args:
        roster: Who runs; knows who is paused.
        append: Appends a token to a sequence, and ends it if it is the last.
        end_with: Ends a sequence with an error.
    """

    def __init__(
        self,
        roster: Roster,
        append: Callable[[Sequence, list[int]], TokenEvent],
        end_with: Callable[[Sequence, EngineError], TokenEvent],
    ) -> None:
        self._roster = roster
        self._append = append
        self._end_with = end_with
        self._changed: list[Sequence] = []

    def propose(self, sequence: Sequence, result: LaneResult) -> TokenEvent:
        """Pauses a sequence with the token that was drawn."""
        sequence.proposal = result.token_id
        self._roster.pause(sequence)
        event = make_event(sequence, [])
        event.proposal, event.distribution = result.token_id, result.distribution
        return event

    def advance(self, request_id: str, token_id: int | None, num_steps: int, banned: ListOf[int]) -> list[TokenEvent]:
        """Goes on with a paused sequence; one that is not paused (any more) is left alone.

        Args:
            request_id: Whose.
            token_id: The token to take; None takes the proposal, or draws again if that is banned now.
            num_steps: Draws until it pauses again; all but the last of them are taken as they come.
            banned: Tokens that may not be drawn from now on.

        Returns:
            What is new: the token, the end, or that the token is not allowed. It stays paused then.
        """
        for sequence in self._roster.of_request(request_id):
            proposal = sequence.proposal
            if proposal is None:
                continue
            if banned:
                self._ban(sequence, banned)
            if token_id is None and proposal in banned:
                self._draw_again(sequence, num_steps)
                return []
            return [self._take(sequence, proposal, proposal if token_id is None else token_id, num_steps)]
        return []

    def take_changed(self) -> list[Sequence]:
        """Running sequences of which the device must be told anew, since the last call."""
        changed, self._changed = self._changed, []
        return [sequence for sequence in dict.fromkeys(changed) if sequence.is_running]

    def _take(self, sequence: Sequence, proposal: int, token_id: int, num_steps: int) -> TokenEvent:
        constraint = sequence.constraint
        if constraint is not None:
            try:
                if token_id != proposal and not constraint.mask()[token_id // 32] >> token_id % 32 & 1:
                    error = InvalidRequest(f"the constraint does not allow token {token_id} here", "token_id")
                    return make_event(sequence, [], error=report(error))
                constraint.advance((token_id,))
            except ConstraintBroken as broken:
                return self._end_with(sequence, broken)
        if token_id != proposal and sequence.params.remembers_output:
            self._changed.append(sequence)
        self._resume(sequence, len(sequence.token_ids) + 1, num_steps)
        return self._append(sequence, [token_id])

    def _draw_again(self, sequence: Sequence, num_steps: int) -> None:
        """Computes the last token once more, for the logits after it."""
        self._resume(sequence, len(sequence.token_ids), num_steps)
        if sequence.is_running:
            last = len(sequence.token_ids) - 1
            sequence.num_scheduled = sequence.num_computed = min(sequence.num_computed, last)

    def _resume(self, sequence: Sequence, length: int, num_steps: int) -> None:
        sequence.proposal = None
        sequence.take_until = length + num_steps - 1
        self._roster.resume(sequence)

    def _ban(self, sequence: Sequence, banned: ListOf[int]) -> None:
        params = sequence.params
        words = dict.fromkeys((*params.bad_words, *((token_id,) for token_id in banned)))
        sequence.params = msgspec.structs.replace(params, bad_words=tuple(words))
        self._changed.append(sequence)
