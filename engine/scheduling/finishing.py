"""How sequences come to their end: by a token, by their length, by an error, or because their caller says so."""

from __future__ import annotations

from engine.contexts.registry import ContextRegistry
from engine.errors import EngineError
from engine.kv.manager import KVManager
from engine.reports import report
from engine.request import ErrorReport, FinishReason, TokenEvent
from engine.scheduling.events import make_event
from engine.scheduling.roster import Roster
from engine.sequence import Sequence
from engine.stats import EngineStats


class Finishing:
    """Appends tokens, ends whom they end, and gives back what the ended held.

    Those that draw together end together: whichever of them is named, all of them end.

    Args:
        kv: The pool.
        roster: Who lives.
        contexts: Histories that outlive who computes on them.
        totals: Counts tokens, and ends by their reasons.
    """

    def __init__(self, kv: KVManager, roster: Roster, contexts: ContextRegistry, totals: EngineStats) -> None:
        self._kv = kv
        self._roster = roster
        self._contexts = contexts
        self._totals = totals

    def append(self, sequence: Sequence, token_ids: list[int]) -> TokenEvent:
        """Appends tokens, at least one, and ends the sequence if they are its last."""
        sequence.token_ids += token_ids
        self._totals.num_decode_tokens += len(token_ids)
        last = token_ids[-1]
        is_stop = last in sequence.stop_ids
        reason = None
        if is_stop or (sequence.constraint is not None and sequence.constraint.is_complete):
            reason = FinishReason.STOP
        elif len(sequence.token_ids) >= sequence.max_total:
            reason = FinishReason.LENGTH
        event = make_event(sequence, token_ids, finish_reason=reason)
        if is_stop:
            event.stop_token_id = last
        return event if reason is None else self._end_by(event, sequence)

    def complete_prompt(self, sequence: Sequence) -> TokenEvent:
        """Ends a sequence that was to compute its prompt and draw nothing."""
        event = make_event(sequence, [], finish_reason=FinishReason.LENGTH)
        event.embedding = sequence.embedding()
        event.rows = sequence.rows
        event.attention = [one.astype("<f4").tobytes() for one in sequence.attention]
        return self._end_by(event, sequence)

    def end_with(self, sequence: Sequence, error: EngineError) -> TokenEvent:
        """Ends a sequence that cannot go on: outside of its language, for one, it must not."""
        return self.fail(sequence, report(error), keep=True)

    def fail(self, sequence: Sequence, error: ErrorReport, *, keep: bool) -> TokenEvent:
        """Ends a sequence with an error; what it has computed stays in the cache if `keep`."""
        first = sequence.members[0]
        return self._end_by(make_event(first, [], finish_reason=FinishReason.ERROR, error=error), first, keep=keep)

    def end(self, sequence: Sequence, reason: FinishReason, *, keep: bool = True) -> None:
        """Ends a sequence without a word to its caller; what it has computed stays in the cache if `keep`."""
        for member in sequence.members:
            self.close(member, keep=keep)
            self._roster.remove(member)
            if member.context is not None:
                self._contexts.leave(member.context)
        finished = self._totals.num_finished
        finished[reason.value] = finished.get(reason.value, 0) + 1

    def close(self, sequence: Sequence, *, keep: bool) -> None:
        """Gives the pages back, to its context or to all; what is computed stays in the cache if `keep`."""
        if sequence.table is None:
            return
        if sequence.context is not None:
            self._contexts.give_back(sequence, intact=keep)
        else:
            self._kv.close(sequence.table, sequence.token_ids[: sequence.num_computed] if keep else ())
            sequence.table = None

    def _end_by(self, event: TokenEvent, sequence: Sequence, *, keep: bool = True) -> TokenEvent:
        """Ends a sequence of which an event says so, and adds what its pages came to."""
        assert event.finish_reason is not None
        self.end(sequence, event.finish_reason, keep=keep)
        event.kv_kib_ms = sequence.kib_ms
        return event
