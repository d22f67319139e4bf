"""Fills each step with lanes, and turns what the step gave back into events.

There are no phases, only sequences with tokens scheduled and tokens to reach (as in chunked prefill, arXiv 2403.02310):
a lane computes one token or a chunk of many, and a step mixes both under one token budget. `schedule` may be called
before the results of the step before it are applied: what it needs to know of those (how many tokens, not which) is
known in advance.

    add ──────▶ arrivals     requests become sequences, which wait
    schedule ─▶ extending    lanes of those who run       ┐  lanes: what a lane is
             ─▶ entering     lanes of those who enter     ┘  yielding: who gives way for it
    apply ────▶ results      tokens drawn, guesses that proved right, rows read
    constrain ▶ constraining what a step that has begun may draw
    (any) ────▶ finishing    the last token, an error, an abort

`roster` knows who lives; `pace`, `shares` and `floors` decide between accounts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf

from engine.adapters.table import AdapterPlace, AdapterTable
from engine.constraints.constraint import Constraint
from engine.constraints.masks import MaskHandover, Masks
from engine.contexts.hosting import failed
from engine.contexts.registry import ContextRegistry
from engine.drafting.drafter import GivenGuesses
from engine.drafting.planning import DraftPlanner
from engine.errors import SequenceNotFound
from engine.kv.block_table import BlockTable
from engine.kv.ceilings import Ceilings
from engine.kv.manager import KVManager
from engine.kv.tiers import HostTier
from engine.programs.binding import BoundProgram
from engine.request import AdapterInfo, ErrorReport, FinishReason, GenerateRequest, Proposal, TokenEvent
from engine.scheduling.admission import Admission
from engine.scheduling.arrivals import Arrivals
from engine.scheduling.batch import Batch, LaneResult
from engine.scheduling.constraining import constrain
from engine.scheduling.entering import Entering
from engine.scheduling.extending import Extending
from engine.scheduling.finishing import Finishing
from engine.scheduling.floors import Floors
from engine.scheduling.holding import describe_holding
from engine.scheduling.lanes import LaneBuilder
from engine.scheduling.limits import Limits
from engine.scheduling.pace import Pace
from engine.scheduling.results import Results
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.scheduling.stepping import Stepping
from engine.scheduling.yielding import Yielding
from engine.sequence import Sequence
from engine.stats import EngineStats

PREFILL_STEP_TOKENS = 64
"""A step of as many tokens and few lanes is taken for one that computes prompts."""


class Scheduler:
    """Owns every live sequence; it and the contexts it owns are the only callers of the KV manager.

    Attributes:
        ceilings: What accounts may be charged in all.
        tier: Host memory.
        contexts: Histories held between requests.
        shares: How accounts share the device.
        stepping: Sequences that pause after a draw.

    Args:
        kv: The pool.
        max_num_seqs: Sequences that run at once.
        max_batch_tokens: Tokens of one step, at least `max_num_seqs`.
        max_waiting: Sequences that may wait.
        eos_token_ids: The model's end ids.
        draw_seed: Gives a seed to requests that bring none.
        window: Positions that a token of the model sees back, itself included; None for all.
        adapters: Those that requests may name.
        draft_cost: What a guessed token adds to a step, see `engine.drafting.costs`.
        host_pages: Pages of host memory for contexts whose pages others need.
        vocab_size: Of the model; needed where callers or programs guess tokens.
    """

    def __init__(
        self,
        kv: KVManager,
        *,
        max_num_seqs: int,
        max_batch_tokens: int,
        max_waiting: int,
        eos_token_ids: tuple[int, ...],
        draw_seed: Callable[[], int],
        window: int | None = None,
        adapters: ListOf[AdapterInfo] = (),
        draft_cost: float = 0.1,
        host_pages: int = 0,
        vocab_size: int = 0,
    ) -> None:
        assert max_batch_tokens >= max_num_seqs
        self.kv = kv
        self.ceilings = Ceilings(kv.meter)
        self.shares = FairShares()
        self.tier = HostTier(host_pages, kv.meter)
        self.contexts = ContextRegistry(kv, self.tier, window)
        self._max_batch_tokens = max_batch_tokens
        self._totals = totals = EngineStats()
        self._roster = roster = Roster(max_num_seqs)
        self._pace = Pace(self.shares, self.contexts.costs)
        self._finishing = Finishing(kv, roster, self.contexts, totals)
        self.stepping = Stepping(roster, self._finishing.append, self._finishing.end_with)
        self._admission = Admission(kv, roster, self.contexts, totals, eos_token_ids)
        self._limits = Limits(kv, roster, self.contexts, self.ceilings, self._finishing)
        drafts = DraftPlanner(draft_cost, vocab_size)
        floors = Floors(kv, roster, self.shares, max_num_seqs)
        lanes = LaneBuilder(self.contexts, self._pace, kv.page_size)
        yielding = Yielding(roster, self.contexts, self.shares, floors, self.stepping, self._finishing, totals)
        self._arrivals = Arrivals(
            kv,
            roster,
            self.contexts,
            self.shares,
            self._limits,
            drafts,
            AdapterTable(adapters),
            draw_seed,
            eos_token_ids,
            max_waiting,
        )
        self._extending = Extending(
            kv, roster, self.contexts, self.shares, drafts, self.stepping, lanes, yielding, max_batch_tokens
        )
        self._entering = Entering(
            kv,
            roster,
            self.shares,
            self.ceilings,
            floors,
            self._pace,
            self._admission,
            lanes,
            yielding,
            max_batch_tokens,
        )
        self._results = Results(kv, roster, drafts, self.stepping, self._finishing, totals)

    @property
    def has_work(self) -> bool:
        """True while any sequence lives that is not paused."""
        return self._roster.has_work

    @property
    def waits(self) -> bool:
        """True if a step is to be scheduled only when the one before it has ended: see `engine.scheduling.pace`."""
        return self._pace.waits

    @property
    def stats(self) -> EngineStats:
        """Totals so far and what is held now."""
        describe_holding(self._totals, kv=self.kv, roster=self._roster, contexts=self.contexts, tier=self.tier)
        return self._totals

    def add(
        self,
        request: GenerateRequest,
        constraint: Constraint | None = None,
        program: BoundProgram | None = None,
        row_adapters: ListOf[AdapterPlace] = (),
    ) -> None:
        """Lets a validated request wait for admission.

        Args:
            request: What is asked.
            constraint: The beginning of the language of its output; each sequence gets a fork.
            program: What draws its tokens, if that is not the sampler.
            row_adapters: For the rows of each lane of its pass, if they have any of their own.

        Raises:
            QueueFull: Too many wait.
            QuotaExceeded: Its account may hold no more.
            SequenceNotFound: Its context is not there.
            LeaseLost: What was kept for its context is gone, and its holder wanted to be told so.
            InvalidRequest: Something computes on its context already, or it has more lanes than may run.
            UnknownAdapter: Its adapter, or that of its context, is not there.
        """
        self._arrivals.add(request, constraint, program, row_adapters)

    def abort(self, request_id: str) -> None:
        """Ends a request without an event; its pages are free at once. Unknown ids pass."""
        for sequence in self._roster.of_request(request_id):
            if not sequence.is_finished:
                self._finishing.end(sequence, FinishReason.ABORT)

    def guess(self, request_id: str, token_ids: ListOf[int], proposals: ListOf[Proposal]) -> None:
        """Takes the guess that a request waits for; one that does not wait (any more) is left alone."""
        for sequence in self._roster.of_request(request_id):
            if isinstance(sequence.drafter, GivenGuesses) and self._roster.is_paused(sequence):
                sequence.drafter.give(token_ids, proposals)
                self._roster.resume(sequence)

    def stop(self, request_id: str, index: int) -> None:
        """Ends one sequence whose caller has found its end in the text; like `abort`, but it counts as finished."""
        for sequence in self._roster.of_request(request_id):
            if sequence.index == index and not sequence.is_finished:
                self._finishing.end(sequence, FinishReason.STOP)

    def release_contexts(self, context_ids: ListOf[str]) -> list[TokenEvent]:
        """Ends contexts, and with an error what is computed on them. Unknown ids pass."""
        events = []
        for context_id in context_ids:
            try:
                context = self.contexts[context_id]
            except SequenceNotFound:
                continue
            if context.sequence is not None:
                events.append(self._finishing.end_with(context.sequence, SequenceNotFound("the context was released")))
            self.contexts.forget(context)
        return events

    def tend(self) -> list[TokenEvent]:
        """What time alone brings about: to be called a few times a second. Returns what it ended."""
        self.kv.meter.tick()
        self.contexts.tend()
        return self._limits.enforce()

    def schedule(self) -> Batch:
        """Chooses the next step's lanes, decoding ones first, then running prefills, then newcomers.

        Advances what is scheduled, never what is computed. Batches must be run in the order of the calls; one without
        lanes is nothing to run.
        """
        batch = Batch()
        held_back = self._begin_pace()
        is_urgent = self._entering.admit_urgent(batch)
        if not is_urgent and not self._extending.extend_all(batch, held_back):
            self._entering.admit(batch)
        if batch.lanes:
            if not is_urgent:  # a step tells news of its own lanes alone: if it fails, they end with it
                batch.assigned_rows += [self._admission.describe(sequence) for sequence in self.stepping.take_changed()]
            batch.released_rows = self._roster.take_released_rows()
            batch.transfers = self.tier.take_pending()
            if batch.constrained:
                batch.masks = MaskHandover()
        return batch

    def _begin_pace(self) -> frozenset[Sequence]:
        """Finds out how long the step may take, and who is to wait for the next one for that."""
        if not self._pace.begin(self._roster.accounts, self.kv.meter.now):
            return frozenset()
        running = self._roster.running
        has_prompts = bool(self._roster.waiting) or any(one.num_pending > 1 for one in running)
        held_back = self._pace.hold_back(running, self._roster.rows_of, has_prompts=has_prompts)
        self._pace.allow_prompts(self._max_batch_tokens)
        return held_back

    def constrain(self, batch: Batch) -> tuple[Masks, list[TokenEvent]]:
        """Works out what a batch's constrained lanes may draw; see `engine.scheduling.constraining`."""
        return constrain(batch, self._finishing, self._totals)

    def apply(self, batch: Batch, results: ListOf[LaneResult], seconds: float = 0.0) -> list[TokenEvent]:
        """Takes in what a step gave; ends sequences that reached their stop. Events are in lane order.

        Args:
            batch: What the step was.
            results: One for each of its lanes.
            seconds: How long the device took for it.
        """
        self._totals.num_steps += 1
        self.shares.charge(batch.lanes, seconds, self._roster.accounts)
        self._note_costs(batch, seconds)
        self._pace.note(batch, seconds)
        self.kv.meter.tick()
        taken = [self._results.take(lane, result) for lane, result in zip(batch.lanes, results, strict=True)]
        return [event for event in taken if event is not None]

    def _note_costs(self, batch: Batch, seconds: float) -> None:
        """Learns what computing and copying KV take, from steps that did little else."""
        costs = self.contexts.costs
        for transfer in batch.transfers:
            if transfer.is_done:
                costs.note_copy(len(transfer.host_pages) * self.kv.meter.page_kib * 1024, transfer.seconds)
        if batch.num_tokens >= max(PREFILL_STEP_TOKENS, 4 * len(batch.lanes)) and not batch.transfers:
            costs.note_prefill(batch.num_tokens, seconds)

    def fail(self, batch: Batch, error: ErrorReport) -> list[TokenEvent]:
        """Ends every sequence of a step that could not be run."""
        failed(batch.transfers)
        sequences = (lane.sequence for lane in batch.lanes)
        return [self._finishing.fail(one, error, keep=False) for one in sequences if not one.is_finished]

    def tables(self) -> Iterator[BlockTable]:
        """All that hold pages now: running sequences, and contexts on which nobody runs."""
        running = (sequence.table for sequence in self._roster if sequence.table is not None)
        return itertools.chain(running, self.contexts.tables())

    def check_integrity(self) -> None:
        """Raises AssertionError unless pages, what they are charged, and living sequences agree."""
        self.kv.check_integrity(self.tables())
        self.tier.check_integrity(self.contexts.hosted())

    def may_hold_no_more(self, context_id: str) -> bool:
        """True if the account of a context is at its ceiling."""
        try:
            return self.ceilings.has_reached(self.contexts[context_id].payer.account)
        except SequenceNotFound:
            return False
