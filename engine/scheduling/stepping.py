"""Sequences whose caller says which token to take after a draw.

    schedule ─▶ draw ─▶ propose ──────────▶ paused ──advance──▶ token appended ─▶ schedule ...
                (or taken by itself, up to `Sequence.take_until`)

A paused sequence has nothing to compute, so it is simply absent from steps, and nobody waits for it. It keeps its pages
and its row until somebody needs them.

Where the caller has lately taken what was proposed, the sequence does not pause: the next steps are computed as if this
proposal were taken too, while the caller still decides. If it is, the next proposal is there already, or on its way:

    device    [ draw 1 ][ draw 2 as if 1 ][ draw 3 as if 1, 2 ] ...
    caller             1?  takes it      2?  takes it          3?

Else what was computed ahead is void: those lanes belong to a run that is over, their K and V are written over, and the
device is told anew what it remembers of the sequence. Nothing that is drawn depends on it, for a draw depends on the
tokens before it, the seed and the position alone. Until a proposal is taken, the tokens computed behind it count for
nothing: neither are they cached, nor left to the context when the sequence ends.
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

DEPTH = 2
"""Proposals that may be open while more is computed: one that the caller decides on, one that is being drawn."""
TRUSTED = 1
"""Proposals that must have been taken before one is computed behind ..."""
MISTRUST = -4
"""... or as many more, after another token was chosen: a step ahead in vain delays what the caller waits for."""


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

    def may_go_on(self, sequence: Sequence) -> bool:
        """False while the next step of a sequence has to wait for its caller."""
        if sequence.num_open <= 0:
            return True
        if sequence.num_open > DEPTH or sequence.trust < TRUSTED or sequence.constraint is not None:
            return False
        if sequence.num_pending < 1:
            return False  # the last is drawn already
        newest = sequence.ahead[-1].token_id if sequence.ahead else sequence.proposal
        return newest not in sequence.stop_ids

    def commit(self, sequence: Sequence) -> None:
        """What a sequence has computed counts as far as its tokens are certain."""
        num_stored, num_known = sequence.num_computed, len(sequence.token_ids)
        sequence.num_computed = min(num_stored, num_known)
        sequence.num_ahead = num_stored - sequence.num_computed
        if num_stored >= sequence.copied_to:
            sequence.copied_to = min(sequence.copied_to, sequence.num_computed)

    def propose(self, sequence: Sequence, result: LaneResult) -> TokenEvent | None:
        """Takes in a token that was drawn, and shows it to the caller unless there is one to decide on before."""
        assert result.token_id is not None
        if sequence.proposal is not None:
            sequence.ahead.append(result)
            self.rest(sequence)
            return None
        if len(sequence.token_ids) < sequence.take_until:
            return self._accept(sequence, result.token_id)
        event = make_event(sequence, [])
        self._show(sequence, result, event)
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
        is_other = token_id != proposal
        sequence.trust = MISTRUST if is_other else min(sequence.trust + 1, TRUSTED)
        if is_other or sequence in self._changed:  # it drew by other rules than it does now
            self._withdraw(sequence, len(sequence.token_ids))
        if is_other and sequence.params.remembers_output:
            self._changed.append(sequence)
        sequence.proposal = None
        sequence.take_until = len(sequence.token_ids) + num_steps
        event = self._accept(sequence, token_id)
        while sequence.ahead and sequence.proposal is None and event.finish_reason is None:
            event = self._take_ahead(sequence, sequence.ahead.pop(0), event)
        if not sequence.is_finished:
            self.rest(sequence)
        return event

    def _take_ahead(self, sequence: Sequence, result: LaneResult, event: TokenEvent) -> TokenEvent:
        """A draw whose turn has come: it is shown, or taken where the caller wants to be asked later."""
        assert result.token_id is not None
        if len(sequence.token_ids) >= sequence.take_until:
            self._show(sequence, result, event)
            return event
        further = self._accept(sequence, result.token_id)
        further.token_ids = event.token_ids + further.token_ids
        further.num_cached_tokens = event.num_cached_tokens
        return further

    def _accept(self, sequence: Sequence, token_id: int) -> TokenEvent:
        """Appends a token that was drawn, or chosen in its place."""
        sequence.num_in_flight = max(sequence.num_in_flight - 1, 0)
        sequence.num_computed += min(sequence.num_ahead, 1)
        sequence.num_ahead = max(sequence.num_ahead - 1, 0)
        return self._append(sequence, [token_id])

    def _show(self, sequence: Sequence, result: LaneResult, event: TokenEvent) -> None:
        sequence.proposal = result.token_id
        event.proposal, event.distribution = result.token_id, result.distribution
        self.rest(sequence)

    def rest(self, sequence: Sequence) -> None:
        """Pauses a sequence, or lets it go on, as it may."""
        if sequence.proposal is None or (sequence.is_running and self.may_go_on(sequence)):
            self._roster.resume(sequence)
        else:
            self._roster.pause(sequence)

    def _withdraw(self, sequence: Sequence, length: int) -> None:
        """What was computed behind the first tokens never was, nor what is on its way."""
        sequence.ahead = []
        sequence.num_ahead = sequence.num_in_flight = 0
        if sequence.is_running:
            sequence.runs += 1
            sequence.num_scheduled = sequence.num_computed = min(sequence.num_computed, length)

    def _draw_again(self, sequence: Sequence, num_steps: int) -> None:
        """Computes the last token once more, for the logits after it."""
        self._withdraw(sequence, len(sequence.token_ids) - 1)
        sequence.proposal, sequence.trust = None, MISTRUST
        sequence.take_until = len(sequence.token_ids) + num_steps - 1
        self._roster.resume(sequence)

    def _ban(self, sequence: Sequence, banned: ListOf[int]) -> None:
        params = sequence.params
        words = dict.fromkeys((*params.bad_words, *((token_id,) for token_id in banned)))
        sequence.params = msgspec.structs.replace(params, bad_words=tuple(words))
        self._changed.append(sequence)
