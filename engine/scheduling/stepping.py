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

TRUSTED = 1
"""Proposals that must have been taken before one is computed behind ..."""
MISTRUST = -4
"""... or as many more, after another token was chosen: a step ahead in vain delays what the caller waits for."""
CONFIDENT = 8
"""Once as many were taken the caller is told of several proposals together: waking it for each costs more than they."""
BURST = 4
"""How many. Most that wait for the caller's next word behind those is as many again."""
SURE = 32
"""Once as many were taken ..."""
LONG_BURST = 8
"""... it is as many: the more often the caller took what was proposed, the less is lost by its taking another."""


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
        if (
            sequence.num_open > _burst(sequence) + min(_burst(sequence), BURST)
            or sequence.trust < TRUSTED
            or sequence.constraint is not None
        ):
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
        """Takes in a token that was drawn, and tells the caller of it, at once or together with those that follow."""
        assert result.token_id is not None
        is_next = sequence.proposal is None and not sequence.ahead
        if is_next and len(sequence.token_ids) < sequence.take_until:
            return self._accept(sequence, result.token_id)
        sequence.ahead.append(result)
        event = self._show(sequence, None)
        self.rest(sequence)
        return event

    def advance(
        self, request_id: str, token_id: int | None, num_steps: int, banned: ListOf[int], num_taken: int = 0
    ) -> list[TokenEvent]:
        """Goes on with a sequence that has a proposal; one that has none (any more) is left alone.

        Args:
            request_id: Whose.
            token_id: The token to take; None takes the proposal, or draws again if that is banned now.
            num_steps: Draws until it pauses again; all but the last of them are taken as they come.
            banned: Tokens that may not be drawn from now on.
            num_taken: Proposals that are taken before, of those that the caller was told of together.

        Returns:
            What is new: the tokens, the end, or that the token is not allowed. It stays paused then.
        """
        for sequence in self._roster.of_request(request_id):
            if sequence.proposal is None:
                continue
            before = self._take_shown(sequence, min(num_taken, sequence.num_shown - 1))
            if sequence.is_finished:
                return before
            proposal = sequence.proposal
            if banned:
                self._ban(sequence, banned)
            if token_id is None and proposal in banned:
                self._draw_again(sequence, num_steps)
                return before
            event = self._take(sequence, proposal, proposal if token_id is None else token_id, num_steps)
            return [*before, event]
        return []

    def take_changed(self) -> list[Sequence]:
        """Running sequences of which the device must be told anew, since the last call."""
        changed, self._changed = self._changed, []
        return [sequence for sequence in dict.fromkeys(changed) if sequence.is_running]

    def _take(self, sequence: Sequence, proposal: int, token_id: int, num_steps: int) -> TokenEvent:
        constraint = sequence.constraint
        if constraint is not None:
            try:
                if token_id != proposal and not constraint.allows(token_id):
                    error = InvalidRequest(f"the constraint does not allow token {token_id} here", "token_id")
                    return make_event(sequence, [], error=report(error))
                constraint.advance((token_id,))
            except ConstraintBroken as broken:
                return self._end_with(sequence, broken)
        is_other = token_id != proposal
        sequence.trust = MISTRUST if is_other else min(sequence.trust + 1, SURE)
        if is_other or sequence in self._changed:  # it drew by other rules than it does now
            self._withdraw(sequence, len(sequence.token_ids))
        if is_other and sequence.params.remembers_output:
            self._changed.append(sequence)
        sequence.proposal, sequence.num_shown = None, 0
        sequence.take_until = len(sequence.token_ids) + num_steps
        event = self._accept(sequence, token_id)
        while sequence.ahead and not sequence.is_finished and len(sequence.token_ids) < sequence.take_until:
            event = self._take_ahead(sequence, event)
        if not sequence.is_finished:
            event = self._show(sequence, event) or event
            self.rest(sequence)
        return event

    def _take_shown(self, sequence: Sequence, count: int) -> list[TokenEvent]:
        """Takes as many proposals, and leaves the next."""
        events = []
        for _ in range(count):
            assert sequence.proposal is not None
            events.append(self._accept(sequence, sequence.proposal))
            if sequence.is_finished:
                break
            sequence.trust = min(sequence.trust + 1, SURE)
            sequence.proposal = sequence.ahead.pop(0).token_id
            sequence.num_shown -= 1
        return events

    def _take_ahead(self, sequence: Sequence, event: TokenEvent) -> TokenEvent:
        """The next draw is taken, where the caller wants to be asked later."""
        token_id = sequence.ahead.pop(0).token_id
        assert token_id is not None
        further = self._accept(sequence, token_id)
        further.token_ids = event.token_ids + further.token_ids
        further.num_cached_tokens = event.num_cached_tokens
        return further

    def _accept(self, sequence: Sequence, token_id: int) -> TokenEvent:
        """Appends a token that was drawn, or chosen in its place."""
        sequence.num_in_flight = max(sequence.num_in_flight - 1, 0)
        if token_id not in sequence.stop_ids:  # one that ends the sequence leaves no K and V behind, as anywhere
            sequence.num_computed += min(sequence.num_ahead, 1)
        sequence.num_ahead = max(sequence.num_ahead - 1, 0)
        return self._append(sequence, [token_id])

    def _show(self, sequence: Sequence, event: TokenEvent | None) -> TokenEvent | None:
        """Adds to an event, or to a new one, what the caller is to decide on; nothing while more is to come with it."""
        known = sequence.ahead
        if sequence.proposal is not None or not known:
            return event
        ends = [at for at, result in enumerate(known, start=1) if result.token_id in sequence.stop_ids]
        if not ends and len(known) < _burst(sequence) and sequence.is_running:
            is_drawing = sequence.num_in_flight > len(known)
            if is_drawing or self.may_go_on(sequence):
                return event
        event = event or make_event(sequence, [])
        sequence.num_shown = min(ends, default=len(known))
        first = known.pop(0)
        sequence.proposal, event.proposal, event.distribution = first.token_id, first.token_id, first.distribution
        for result in known[: sequence.num_shown - 1]:
            assert result.token_id is not None
            event.further.append((result.token_id, result.distribution))
        return event

    def rest(self, sequence: Sequence) -> None:
        """Pauses a sequence, or lets it go on, as it may."""
        if sequence.proposal is None or (sequence.is_running and self.may_go_on(sequence)):
            self._roster.resume(sequence)
        else:
            self._roster.pause(sequence)

    def _withdraw(self, sequence: Sequence, length: int) -> None:
        """What was computed behind the first tokens never was, nor what is on its way."""
        sequence.ahead = []
        sequence.num_shown = sequence.num_ahead = sequence.num_in_flight = 0
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


def _burst(sequence: Sequence) -> int:
    """How many proposals its caller is told of together."""
    if sequence.trust >= SURE:
        return LONG_BURST
    return BURST if sequence.trust >= CONFIDENT else 1
