"""How those who wait come to run: where their pages come from, and what makes room for them.

A sequence takes over pages from, in this order: the first sequence of its request, which has computed their prompt; its
held context, or a relative of that; the prefix cache.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from engine.contexts.registry import ContextRegistry
from engine.kv.manager import KVManager, PrefixName
from engine.scheduling.batch import RowAssignment
from engine.scheduling.policy import is_ready, spare_pages
from engine.scheduling.roster import Roster
from engine.sequence import Sequence
from engine.stats import EngineStats


class Admission:
    """Decides on one sequence at a time; whose turn it is, is the scheduler's business.

    Args:
        kv: The pool.
        roster: Who waits and who runs.
        contexts: Held contexts; they give way to those who want to run.
        totals: Counts prompt tokens.
        eos_token_ids: The model's end ids.
    """

    def __init__(
        self,
        kv: KVManager,
        roster: Roster,
        contexts: ContextRegistry,
        totals: EngineStats,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._contexts = contexts
        self._totals = totals
        self._eos = eos_token_ids

    def is_ready(self, sequence: Sequence) -> bool:
        """False while a sequence is paused, or should wait for another to compute what both have in common."""
        if sequence.context is None:
            return is_ready(sequence)
        return not self._roster.is_paused(sequence) and self._contexts.is_ready(sequence)

    def can_enter(self, sequence: Sequence, entered: ListOf[Sequence] = ()) -> bool:
        """True if there are pages for all of its tokens; idle contexts give up theirs if that helps.

        Args:
            sequence: One that waits.
            entered: Those that just entered together with it, whose pages are not all reserved yet.
        """
        num_others = len(self._roster.running) - len(entered)
        spare = spare_pages(num_others, self._kv.num_pages) + sum(self._num_missing(one) for one in entered)
        while not self._fits(sequence, spare):
            if self._contexts.demote_one(keep=sequence.context):
                continue
            # Its own pages last: they may be shared with the cache, and then take a page more than they save.
            if num_others or not self._contexts.demote_one():
                return False
        return True

    def _num_missing(self, sequence: Sequence) -> int:
        """Pages that a running sequence needs for the tokens it has."""
        assert sequence.table is not None
        start, stop = sequence.num_scheduled - sequence.num_dropped, len(sequence.token_ids) - sequence.num_dropped
        return self._kv.num_missing(sequence.table, start, stop)

    def enter(self, sequence: Sequence) -> RowAssignment:
        """Gives a sequence that can enter its pages and a row, and returns what the device must know of it."""
        plan, sequence.restoring = sequence.restoring, None
        num_certain = None if plan is None else self._contexts.restore(sequence, plan)
        num_held, num_cached = self._take_pages(sequence)
        num_certain = num_held if num_certain is None else num_certain
        if sequence.num_cached is None:
            sequence.num_cached = num_cached
            if sequence.index == 0:
                self._totals.num_prompt_tokens += sequence.num_prompt
                self._totals.num_cached_tokens += num_held
        sequence.name = None
        sequence.num_scheduled = sequence.num_computed = num_held
        sequence.copied_from, sequence.copied_to = num_certain, 0 if num_certain == num_held else num_held + 1
        sequence.runs += 1
        self._roster.start(sequence)
        return self.describe(sequence)

    def describe(self, sequence: Sequence) -> RowAssignment:
        """What the device must know of a running sequence."""
        assert sequence.row is not None
        return RowAssignment(
            sequence.row,
            sequence.params,
            sequence.seed,
            sequence.index,
            sequence.prompt_ids,
            tuple(sequence.output_ids),
            self._eos,
            sequence.program,
            sequence.members.index(sequence),
            sequence.drafter is not None and sequence.drafter.is_offering,
        )

    def _fits(self, sequence: Sequence, spare: int) -> bool:
        if self._shared_prompt(sequence):
            return self._kv.num_available > spare
        context = sequence.context
        sequence.restoring = None
        if context is not None:
            num_held = self._contexts.prepare(sequence)
            if context.host is not None:
                sequence.restoring = self._contexts.plan_restore(sequence, self._name(sequence))
                if sequence.restoring is not None:
                    return self._kv.can_open(sequence.restoring.name, spare_pages=spare)
            if context.table is not None:
                stop = len(sequence.token_ids)
                return self._kv.can_reserve(
                    context.table, num_held - context.num_dropped, stop - context.num_dropped, spare_pages=spare
                )
        return self._kv.can_open(self._name(sequence), spare_pages=spare)

    def _name(self, sequence: Sequence) -> PrefixName:
        """What its history is called in the prefix cache."""
        if sequence.name is None:
            context = sequence.context
            salt = sequence.request.salt if context is None else context.salt
            num_reusable = sequence.num_reusable if context is None else min(sequence.num_reusable, context.num_plain)
            sequence.name = self._kv.name(
                sequence.token_ids, salt=salt, adapter=sequence.adapter.digest, num_reusable=num_reusable
            )
        return sequence.name

    def _take_pages(self, sequence: Sequence) -> tuple[int, int | None]:
        """Gives a sequence that fits its table; returns the tokens that holds, and those to report as cached."""
        shared = self._shared_prompt(sequence)
        if shared:
            leader = sequence.leader
            assert leader is not None
            assert leader.table is not None
            sequence.table = self._kv.fork(leader.table, shared, sequence.payer)
            return shared, leader.num_cached
        context = sequence.context
        if context is not None and context.table is not None:
            num_held = context.num_computed
            self._contexts.enter(sequence)
            return num_held, num_held
        assert sequence.name is not None
        sequence.table, num_held = self._kv.open(
            sequence.name, expected_tokens=sequence.max_total, payer=sequence.payer
        )
        return num_held, num_held

    def _shared_prompt(self, sequence: Sequence) -> int:
        """Tokens that a sequence can take over from its running leader; 0 if it must find its own way.

        The prompt's last token is left over: computing it again yields the logits for the first draw.
        """
        leader = sequence.leader
        if sequence.index == 0 or leader is None or not leader.is_running or sequence.num_output:
            return 0
        return sequence.num_prompt - 1
