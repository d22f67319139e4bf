"""Fills each step with lanes, and turns what the step gave back into events.

There are no phases, only sequences with tokens scheduled and tokens to reach (as in chunked prefill, arXiv 2403.02310):
a lane computes one token or a chunk of many, and a step mixes both under one token budget. `schedule` may be called
before the results of the step before it are applied: what it needs to know of those (how many tokens, not which) is
known in advance.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as ListOf

import msgspec

from engine.adapters.table import NO_ADAPTER, AdapterPlace, AdapterTable
from engine.attention.scores import add_scores
from engine.constraints.constraint import Constraint, ConstraintBroken, TokenMask
from engine.constraints.masks import MaskHandover, Masks
from engine.contexts.held import HeldContext
from engine.contexts.hosting import failed
from engine.contexts.registry import ContextRegistry
from engine.drafting.drafter import GivenGuesses
from engine.drafting.masks import draft_masks
from engine.drafting.offers import Offer
from engine.drafting.planning import DraftPlanner
from engine.errors import EngineError, InvalidRequest, ProgramFailed, QueueFull, QuotaExceeded, SequenceNotFound
from engine.forward.attended import attended_rows
from engine.forward.lockstep import LaneGroup, portions
from engine.forward.sights import positions_of
from engine.forward.verified import pass_offers
from engine.kv.block_table import BlockTable
from engine.kv.ceilings import Ceilings
from engine.kv.manager import KVManager, PageCopy
from engine.kv.tiers import HostTier
from engine.programs.binding import BoundProgram
from engine.programs.session import ProgramSession
from engine.reports import report
from engine.request import AdapterInfo, ErrorReport, FinishReason, GenerateRequest, Proposal, TokenEvent
from engine.sampling.random import stream_key
from engine.scheduling.admission import Admission
from engine.scheduling.batch import Batch, Lane, LaneResult
from engine.scheduling.events import make_event
from engine.scheduling.floors import Floors
from engine.scheduling.pace import Pace
from engine.scheduling.plain import is_plain, plain_lane, take_plain
from engine.scheduling.policy import preemption_victim
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.scheduling.stepping import Stepping
from engine.sequence import Sequence
from engine.stats import EngineStats

PREFILL_STEP_TOKENS = 64
"""A step of as many tokens and few lanes is taken for one that computes prompts."""
PROMPT_READOUT_CHUNK = 256
"""Most prompt positions read out in one lane and step: each costs a row of logits over the whole vocabulary."""


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
        self._prompt_left = 0
        """Prompt tokens that those whose step must be short may still compute in this one."""
        self._max_batch_tokens = max_batch_tokens
        self._max_waiting = max_waiting
        self._eos = tuple(eos_token_ids)
        self.tier = HostTier(host_pages, kv.meter)
        self.contexts = ContextRegistry(kv, self.tier, window)
        self._draw_seed = draw_seed
        self._adapters = AdapterTable(adapters)
        self._pace = Pace(self.shares, self.contexts.costs)
        self._drafts = DraftPlanner(draft_cost, vocab_size)
        self._arrivals = itertools.count()
        self._roster = Roster(max_num_seqs)
        self._floors = Floors(kv, self._roster, self.shares, max_num_seqs)
        self._totals = EngineStats()
        self.stepping = Stepping(self._roster, self._append, self._end_with)
        self._admission = Admission(kv, self._roster, self.contexts, self._totals, self._eos)

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
        usage, totals = self.kv.usage, self._totals
        totals.num_running, totals.num_waiting = len(self._roster.running), len(self._roster.waiting)
        totals.num_pages, totals.num_used_pages, totals.num_cached_pages = (
            self.kv.num_pages,
            usage.num_used,
            usage.num_cached,
        )
        self._describe_holding(totals)
        return totals

    def _describe_holding(self, totals: EngineStats) -> None:
        contexts, tier = self.contexts, self.tier
        totals.num_contexts, totals.num_leases = len(contexts), len(contexts.leases)
        totals.num_revoked, totals.num_demoted = contexts.leases.num_revoked, contexts.num_demoted
        totals.num_host_pages = tier.num_pages - tier.num_free
        totals.num_saved_pages, totals.num_restored_pages = tier.num_saved, tier.num_restored
        self.kv.meter.tick()
        totals.overhead_kib_ms = self.kv.meter.overhead_kib_ms

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
        if len(self._roster.waiting) + request.n + len(request.lane_ids) > self._max_waiting:
            raise QueueFull(len(self._roster.waiting))
        if request.lane_ids:
            self._add_lanes(request, constraint, program, row_adapters)
            return
        assert request.request_id not in self._roster, "request ids are unique"
        params = request.sampling
        seed = self._draw_seed() if params.seed is None else params.seed
        stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else self._eos)
        sequences: list[Sequence] = []
        context = self.contexts.claim(request.context_id) if request.context_id else None
        self._check_quota(request.account if context is None else context.payer.account, context)
        adapter = self._adapters.find(request.adapter if context is None else context.adapter)
        for index in range(request.n):
            token_ids = list(request.prompt_ids) if context is None else context.token_ids
            payer = self.kv.meter.payer(request.account) if context is None else context.payer
            sequence = Sequence(request, index, next(self._arrivals), seed, stop_ids, payer, token_ids, context=context)
            sequence.leader = sequences[0] if sequences else None
            sequence.adapter = adapter
            sequence.row_adapter = row_adapters[0] if row_adapters else NO_ADAPTER
            if program is None or not program.graph.probes:
                self._drafts.begin(sequence, request)
            sequence.constraint = None if constraint is None else constraint.fork()
            if sequence.constraint is not None and request.num_given:
                sequence.constraint.advance(token_ids[-request.num_given :])
            if program is not None:
                sequence.program = ProgramSession(
                    program,
                    stream_key(seed, index),
                    sequence.num_prompt,
                    num_rows=sum(len(lane.rows) for lane in request.passes),
                    offers=pass_offers(request, token_ids),
                )
            sequence.is_plain = is_plain(sequence)
            sequences.append(sequence)
        if context is not None:
            self._begin(context, sequences[0], 0)
        account = sequences[0].payer.account
        if account not in self._roster.accounts:
            self.shares.join(account, self._roster.accounts, self.kv.meter.now)
        self.shares.note(account, self.kv.meter.now)
        self._roster.add(sequences)

    def _add_lanes(
        self,
        request: GenerateRequest,
        constraint: Constraint | None,
        program: BoundProgram | None,
        row_adapters: ListOf[AdapterPlace],
    ) -> None:
        """Lets the lanes of one request wait, a sequence each; the first is held to the constraint."""
        assert program is not None, "lanes draw by a program"
        num_lanes = 1 + len(request.lane_ids)
        if num_lanes > self._roster.num_rows:
            raise InvalidRequest(f"{num_lanes} lanes; {self._roster.num_rows} sequences run at once here", "lane_ids")
        params = request.sampling
        seed = self._draw_seed() if params.seed is None else params.seed
        stop_ids = frozenset(params.stop_token_ids).union(() if params.ignore_eos else self._eos)
        contexts = [self.contexts.claim(context_id) for context_id in (request.context_id, *request.lane_ids)]
        adapters = [self._adapters.find(context.adapter) for context in contexts]
        account = contexts[0].payer.account
        if any(context.payer.account != account for context in contexts):
            raise InvalidRequest("lanes that draw together belong to one account", "lane_ids")
        self._check_quota(account)
        num_rows = sum(len(lane.rows) for lane in request.passes)
        session = ProgramSession(program, stream_key(seed, 0), len(contexts[0].token_ids), num_lanes, num_rows)
        members: list[Sequence] = []
        for context, adapter in zip(contexts, adapters, strict=True):
            sequence = Sequence(
                request, 0, next(self._arrivals), seed, stop_ids, context.payer, context.token_ids, context=context
            )
            sequence.program, sequence.adapter = session, adapter
            sequence.row_adapter = row_adapters[len(members)] if row_adapters else NO_ADAPTER
            self._begin(context, sequence, len(members))
            members.append(sequence)
        members[0].constraint = None if constraint is None else constraint.fork()
        group = LaneGroup(tuple(members))
        for member in members:
            member.group = group
        if account not in self._roster.accounts:
            self.shares.join(account, self._roster.accounts, self.kv.meter.now)
        self.shares.note(account, self.kv.meter.now)
        self._roster.add(members)

    def _begin(self, context: HeldContext, sequence: Sequence, lane: int) -> None:
        """A sequence is to compute on its context, as a lane of its request."""
        passes = sequence.request.passes
        shape = passes[lane].shape if passes else None
        if shape is not None and sequence.row_adapter.number >= 0:
            shape = msgspec.structs.replace(shape, adapter=sequence.row_adapter.digest)
        self.contexts.begin(context, sequence, shape)
        if passes:
            sequence.reads = passes[lane].rows
            sequence.first_read = sum(len(one.rows) for one in passes[:lane])

    def abort(self, request_id: str) -> None:
        """Ends a request without an event; its pages are free at once. Unknown ids pass."""
        for sequence in self._roster.of_request(request_id):
            if not sequence.is_finished:
                self._end(sequence, FinishReason.ABORT)

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
                self._end(sequence, FinishReason.STOP)

    def release_contexts(self, context_ids: ListOf[str]) -> list[TokenEvent]:
        """Ends contexts, and with an error what is computed on them. Unknown ids pass."""
        events = []
        for context_id in context_ids:
            try:
                context = self.contexts[context_id]
            except SequenceNotFound:
                continue
            if context.sequence is not None:
                events.append(self._end_with(context.sequence, SequenceNotFound("the context was released")))
            self.contexts.forget(context)
        return events

    def tend(self) -> list[TokenEvent]:
        """What time alone brings about: to be called a few times a second. Returns what it ended."""
        self.kv.meter.tick()
        self.contexts.tend()
        events = []
        for account, is_over in self.ceilings.reached().items():
            self.contexts.demote_account(account)
            if is_over:
                running = [sequence for sequence in self._roster if sequence.payer.account == account]
                events += [self._end_with(one, QuotaExceeded(account)) for one in running if not one.is_finished]
        return events

    def schedule(self) -> Batch:
        """Chooses the next step's lanes, decoding ones first, then running prefills, then newcomers.

        Advances what is scheduled, never what is computed. Batches must be run in the order of the calls; one without
        lanes is nothing to run.
        """
        batch = Batch()
        prefilling: list[Sequence] = []
        num_preempted = 0
        held_back = self._begin_pace()
        first = self._admit_urgent(batch) if len(self._roster.accounts) > 1 else ()
        for sequence in () if first else tuple(self._roster.running):
            if not sequence.is_running or sequence in held_back:
                continue  # it yielded to one before it, or it is not its turn
            if sequence.is_plain:
                lane = plain_lane(sequence, self.kv)
                if lane is not None:
                    batch.append(lane)
                    continue
            if sequence.group is not None:
                if sequence.group.first is sequence:
                    num_preempted += self._extend_group(batch, sequence.group, prefilling)
                continue
            num_pending = sequence.num_pending
            if sequence.drafter is not None and sequence.drafter.waits and self._is_awaited(sequence):
                continue
            if sequence.request.stepped and not self.stepping.may_go_on(sequence):
                continue
            if num_pending == 1:
                num_preempted += self._extend(batch, sequence)
            elif num_pending > 1:
                prefilling.append(sequence)
        if len(self._roster.accounts) > 1:
            prefilling = list(self.shares.order(prefilling))
        for sequence in prefilling:
            if not sequence.is_running:
                continue
            if sequence.group is None:
                num_preempted += self._extend(batch, sequence)
            else:
                num_preempted += self._extend_group(batch, sequence.group)
        if not num_preempted and not first:
            self._admit(batch)
        if batch.lanes:
            if not first:  # a step tells news of its own lanes alone: if it fails, they end with it
                batch.assigned_rows += [self._admission.describe(sequence) for sequence in self.stepping.take_changed()]
            batch.released_rows = self._roster.take_released_rows()
            batch.transfers = self.tier.take_pending()
            if batch.constrained:
                batch.masks = MaskHandover()
        return batch

    def constrain(self, batch: Batch) -> tuple[Masks, list[TokenEvent]]:
        """Works out what a batch's constrained lanes may draw; to be called once all steps before it are applied.

        Where the next tokens are certain they are appended at once, and what the lane draws is void: the next step
        computes all of them together.
        """
        masks: dict[tuple[int, int], TokenMask] = {}
        events = []
        for lane in batch.constrained:
            sequence = lane.sequence
            if not sequence.is_running or lane.run != sequence.runs:
                continue  # it ended, or gave its pages back; what it draws is void
            assert sequence.constraint is not None
            try:
                forced = [] if lane.drafts else sequence.forced_tokens()
                if forced:
                    sequence.constraint.advance(forced)
                else:
                    for depth, mask in enumerate(draft_masks(sequence.constraint, lane.drafts)):
                        if mask is not None:
                            masks[lane.row, depth] = mask
            except ConstraintBroken as error:
                events.append(self._end_with(sequence, error))
                continue
            if forced:
                self._totals.num_forced_tokens += len(forced)
                lane.samples = False
                sequence.num_in_flight -= 1
                events.append(self._append(sequence, forced))
        return masks, events

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
        events = []
        for lane, result in zip(batch.lanes, results, strict=True):
            sequence = lane.sequence
            if not sequence.is_running or lane.run != sequence.runs:
                continue  # it ended, or gave its pages back and will compute this again
            if sequence.is_plain and lane.samples and result.token_id is not None:
                event = take_plain(sequence, lane, result.token_id)
                if event is not None:
                    self._totals.num_decode_tokens += 1
                    events.append(event)
                    continue
            self._commit(lane, result)
            if sequence.group is not None:
                if lane.samples and sequence is sequence.group.last:
                    events.append(self._accept_all(sequence.group, result))
            elif lane.proposes:
                event = self.stepping.propose(sequence, result)
                if event is not None:
                    events.append(event)
            elif lane.samples:
                events.append(self._accept(sequence, lane, result))
            elif sequence.num_computed == sequence.max_total:
                events.append(self._complete_prompt(sequence))
        return events

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
        events = []
        for lane in batch.lanes:
            if not lane.sequence.is_finished:
                first = lane.sequence.members[0]
                event = make_event(first, [], finish_reason=FinishReason.ERROR, error=error)
                events.append(self._end_by(event, first, keep=False))
        return events

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

    def _check_quota(self, account: str, keep: HeldContext | None = None) -> None:
        """Refuses what an account may not hold, unless it fits once the account's idle contexts hold nothing."""
        if self.ceilings:
            self.kv.meter.tick()
            if self.ceilings.has_reached(account):
                self.contexts.demote_account(account, keep)
                if self.ceilings.has_reached(account):
                    raise QuotaExceeded(account)

    # -- filling a step -------------------------------------------------------------------------------------------

    def _extend_group(self, batch: Batch, group: LaneGroup, later: list[Sequence] | None = None) -> int:
        """The same for sequences that draw together; those with a prompt to compute wait in `later`, if that is given.

        Returns:
            How many had to yield for them.
        """
        if later is not None and not group.is_level:
            later.append(group.first)
            return 0
        num_preempted = 0
        for member, count in portions(group, self._max_batch_tokens - batch.num_tokens, self._chunk):
            num_preempted += self._extend(batch, member, count)
            if not member.is_running:
                break  # they yielded, all of them
        return num_preempted

    def _extend(self, batch: Batch, sequence: Sequence, count: int | None = None) -> int:
        """Gives a running sequence its lane, if the budget lets it; returns how many had to yield for it."""
        if count is None:
            count = self._chunk(sequence, self._max_batch_tokens - batch.num_tokens)
        if count == 0:
            return 0
        assert sequence.table is not None
        start = sequence.num_scheduled - sequence.num_dropped
        drafts = self._guess(batch, sequence, start) if sequence.drafter is not None and count == 1 else ()
        stop = start + count + len(drafts)
        if stop == start + 1 and self.kv.owns(sequence.table, start):
            self._append_lane(batch, sequence, count, copies=())
            return 0
        num_preempted = 0
        if sequence.proposal is not None and not self.kv.can_reserve(sequence.table, start, stop):
            self._roster.pause(sequence)  # nobody gives way to a guess
            return 0
        while not self.kv.can_reserve(sequence.table, start, stop):
            if self.contexts.demote_one() or self._park_one():
                continue
            self._preempt(batch, preemption_victim(self._roster.running, self.shares.clock))
            num_preempted += 1
            if not sequence.is_running:
                return num_preempted
        copies = self.kv.reserve(sequence.table, start, stop)
        offers = sequence.drafter.offers if drafts and sequence.drafter is not None else ()
        self._append_lane(batch, sequence, count, copies=copies, drafts=drafts, offers=offers)
        return num_preempted

    def _is_awaited(self, sequence: Sequence) -> bool:
        """True while what it guesses from is not known, or its caller has not guessed yet."""
        return sequence.num_in_flight > 0 or self._roster.is_paused(sequence)

    def _guess(self, batch: Batch, sequence: Sequence, start: int) -> ListOf[int]:
        """Tokens to verify behind the one that a sequence computes, if there is room for them without a sacrifice."""
        assert sequence.table is not None
        budget = self._max_batch_tokens - len(self._roster.running) - batch.num_drafts
        drafts = self._drafts.propose(sequence, batch, budget, len(self._roster.running))
        fits = drafts and self.kv.can_reserve(sequence.table, start, start + 1 + len(drafts))
        return drafts if fits else ()

    def _admit_urgent(self, batch: Batch) -> frozenset[str]:
        """Gives a step to newcomers alone whose accounts have had no more of the device than any other.

        Whoever asks for little is not to wait behind the lanes of who asks for much; the others go on with the next
        step, for then those are ahead.
        """
        waiting = {sequence.payer.account for sequence in self._roster.waiting}
        urgent = self.shares.urgent(waiting, self._roster.rows_of) if self._roster.running else frozenset()
        if urgent:
            self._admit(batch, only=urgent)
        return urgent if batch.lanes else frozenset()

    def _begin_pace(self) -> frozenset[Sequence]:
        """Finds out how long the step may take, and who is to wait for the next one for that."""
        if not self._pace.begin(self._roster.accounts, self.kv.meter.now):
            return frozenset()
        running = self._roster.running
        has_prompts = bool(self._roster.waiting) or any(one.num_pending > 1 for one in running)
        held_back = self._pace.hold_back(running, self._roster.rows_of, has_prompts=has_prompts)
        self._prompt_left = self._pace.num_prompt_tokens(self._max_batch_tokens)
        return held_back

    def _admit(self, batch: Batch, only: frozenset[str] | None = None) -> None:
        """Lets those who wait enter, in order, while seats, pages and budget last; those of some accounts `only`.

        Where several accounts want the device, each takes its turn; one that cannot have what its next sequence needs
        holds up only those that have their part already.
        """
        waiting: Iterable[Sequence] = list(self._roster.waiting)
        several = len(self._roster.accounts) > 1
        if several:
            waiting = self.shares.order(self._roster.waiting)
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
            if account in blocked or not self._may_compute(account) or not self._may_enter(sequence):
                continue
            if blocked and not self._floors.covers(sequence):
                continue
            if not self._enter(batch, sequence, entered):
                if not several:
                    return
                blocked.add(account)

    def _may_compute(self, account: str) -> bool:
        """False if an account's part of a short step is used up."""
        return self._prompt_left > 0 or not self._pace.slows(account)

    def _may_enter(self, sequence: Sequence) -> bool:
        """False while it, or one that draws together with it, is at its account's ceiling or waits for another."""
        for member in sequence.members:
            if self.ceilings.has_reached(member.payer.account) or not self._admission.is_ready(member):
                return False
        return True

    def _enter(self, batch: Batch, sequence: Sequence, entered: set[Sequence]) -> bool:
        """Lets one enter that waits, and those that draw together with it; False, and nobody, where there is no room.

        Rows and pages are free ones, those of who pauses, those of who has too much.
        """
        members = sequence.members
        while self._roster.num_free_rows < len(members):
            if not self._park_one() and not self._take_back(batch, sequence, entered):
                return False
        joined: list[Sequence] = []
        rows = []
        for member in members:
            while not self._admission.can_enter(member, joined):
                if not self._park_one() and not self._take_back(batch, member, entered.union(joined)):
                    for one in joined:
                        self._suspend(one)
                    return False
            rows.append(self._admission.enter(member))
            joined.append(member)
        batch.assigned_rows += rows
        entered.update(joined)
        budget = self._max_batch_tokens - batch.num_tokens
        parts = [(sequence, self._chunk(sequence, budget))]
        if sequence.group is not None:
            parts = portions(sequence.group, budget, self._chunk)
        for member, count in parts:
            assert member.table is not None
            start = member.num_scheduled - member.num_dropped
            self._append_lane(batch, member, count, copies=self.kv.reserve(member.table, start, start + count))
        return True

    def _take_back(self, batch: Batch, sequence: Sequence, entered: set[Sequence]) -> bool:
        """Takes the place of one whose account has more than its part, for one whose account has less than its own."""
        victim = self._floors.victim(sequence, entered)
        if victim is None:
            return False
        self._preempt(batch, victim)
        return True

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        count = sequence.num_pending
        if count > budget:
            count = budget
        if count > 1:
            count = min(count, self._prompt_left) if self._pace.slows(sequence.payer.account) else count
        if sequence.context is not None and sequence.context.edits:
            count = min(count, self.contexts.free_unseen(sequence))
        if sequence.row_adapter.number >= 0 and 0 < sequence.num_unshaped - sequence.num_scheduled < count:
            count = sequence.num_unshaped - sequence.num_scheduled  # what comes before the rows has another adapter
        if count > PROMPT_READOUT_CHUNK and sequence.wants_prompt_logprobs:
            return min(count, max(0, sequence.first_scored - sequence.num_scheduled) + PROMPT_READOUT_CHUNK)
        return count

    def _append_lane(
        self,
        batch: Batch,
        sequence: Sequence,
        count: int,
        *,
        copies: ListOf[PageCopy],
        drafts: ListOf[int] = (),
        offers: ListOf[Offer] = (),
    ) -> None:
        assert sequence.table is not None
        assert sequence.row is not None
        assert count > 0
        if sequence.num_pending > 1 and self._pace.slows(sequence.payer.account):
            self._prompt_left -= count
        start, stop = sequence.num_scheduled, sequence.num_scheduled + count
        samples = stop == sequence.num_tokens < sequence.max_total
        lane = Lane(
            sequence=sequence,
            run=sequence.runs,
            start=start,
            num_tokens=count + len(drafts),
            samples=samples,
            feeds_back=sequence.num_in_flight > 0,
            reads_prompt=start < sequence.num_prompt - 1 and sequence.scores(stop),
            row=sequence.row,
            pages=sequence.table.pages[:],
            copies=copies,
            pools=sequence.request.pooling is not None and sequence.pools(stop),
            drafts=drafts,
            offers=offers[: len(drafts)],
        )
        batch.append(lane)
        has_own = sequence.row_adapter.number >= 0 and start >= sequence.num_unshaped
        lane.adapter = (sequence.row_adapter if has_own else sequence.adapter).number
        batch.num_adapted += lane.adapter >= 0
        batch.num_drafts += len(drafts)
        batch.is_awaited |= sequence.drafter is not None and sequence.drafter.waits
        if sequence.context is not None:
            self._hold(batch, lane, sequence.context)
        sequence.num_in_flight += samples
        if copies:
            sequence.copied_from, sequence.copied_to = start // self.kv.page_size * self.kv.page_size, lane.stop
        if samples and sequence.constraint is not None:
            batch.constrained.append(lane)
        sequence.num_scheduled = lane.stop

    def _hold(self, batch: Batch, lane: Lane, context: HeldContext) -> None:
        """Gives the lane of a held context what others do not have."""
        sequence = lane.sequence
        if lane.samples and lane.stop >= sequence.take_until:
            lane.proposes, lane.readout = True, sequence.request.readout
            batch.num_readouts += lane.readout is not None
        if context.edits or context.shape is not None:
            batch.num_edited += 1
            lane.offset, lane.mask = sequence.num_dropped, self.contexts.mask(sequence, lane.start, lane.stop)
        if context.shape is not None:
            lane.positions = positions_of(context.shape, lane.start, lane.stop)
        if sequence.reads:
            first, last = bisect_left(sequence.reads, lane.start), bisect_left(sequence.reads, lane.stop)
            lane.reads = [slot - lane.start for slot in sequence.reads[first:last]]
            lane.first_read = sequence.first_read + first
        if sequence.request.attention is not None:
            lane.attends = attended_rows(sequence.request, lane, context)
            batch.num_attended += lane.attends is not None

    def _park_one(self) -> bool:
        """Lets a paused sequence wait for its turn, with its pages in its context; False if none has any."""
        sequence = self._roster.last_paused()
        if sequence is None:
            return False
        self._suspend(sequence)
        return True

    def _preempt(self, batch: Batch, victim: Sequence) -> None:
        """Takes a running sequence's pages; it keeps the tokens it knows, and waits to compute them again."""
        for member in victim.members:
            batch.withdraw(member)
            self._suspend(member)
            if member.context is not None:
                self.contexts.demote(member.context)
        self._totals.num_preemptions += 1

    def _suspend(self, sequence: Sequence) -> None:
        """Takes a sequence out of those who run."""
        self._close(sequence, keep=True)
        sequence.num_scheduled = sequence.num_computed = sequence.num_in_flight = sequence.num_ahead = 0
        sequence.ahead = sequence.ahead[: max(sequence.num_shown - 1, 0)]
        sequence.prompt_logprobs = []
        sequence.rows = []
        sequence.attention = []
        sequence.pooled = None
        self._roster.suspend(sequence)
        if sequence.request.stepped:
            self.stepping.rest(sequence)

    # -- taking results in ----------------------------------------------------------------------------------------

    def _commit(self, lane: Lane, result: LaneResult) -> None:
        """What the lane computed is there now."""
        sequence = lane.sequence
        assert sequence.table is not None
        sequence.num_computed = lane.stop
        if sequence.request.stepped:
            self.stepping.commit(sequence)
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
                self.kv.publish(sequence.table, sequence.token_ids[:num_plain])

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
            return self._end_with(sequence, ProgramFailed())
        token_ids = [result.token_id, *(token_id for token_id, _ in result.further)]
        if sequence.constraint is not None:
            try:
                sequence.constraint.advance(token_ids)
            except ConstraintBroken as error:
                return self._end_with(sequence, error)
        sequence.num_in_flight -= 1
        event = self._append(sequence, token_ids)
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
            return self._end_with(group.first, ProgramFailed())
        if group.first.constraint is not None:
            try:
                group.first.constraint.advance([result.token_id])
            except ConstraintBroken as error:
                return self._end_with(group.first, error)
        for member in group.members:
            member.num_in_flight -= 1
            if member is not group.first:
                member.token_ids.append(result.token_id)
        event = self._append(group.first, [result.token_id])
        if result.probes is not None:
            event.probes = [result.probes]
        event.attention = [one.astype("<f4").tobytes() for member in group.members for one in member.attention]
        return event

    def _append(self, sequence: Sequence, token_ids: list[int]) -> TokenEvent:
        """Appends tokens, and ends the sequence if they are its last."""
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

    def _end_with(self, sequence: Sequence, error: EngineError) -> TokenEvent:
        """Ends a sequence that cannot go on: outside of its language, for one, it must not."""
        first = sequence.members[0]
        event = make_event(first, [], finish_reason=FinishReason.ERROR, error=report(error))
        return self._end_by(event, first)

    def _complete_prompt(self, sequence: Sequence) -> TokenEvent:
        """Ends a sequence that was to compute its prompt and draw nothing."""
        event = make_event(sequence, [], finish_reason=FinishReason.LENGTH)
        event.embedding = sequence.embedding()
        event.rows = sequence.rows
        event.attention = [one.astype("<f4").tobytes() for one in sequence.attention]
        return self._end_by(event, sequence)

    def _end_by(self, event: TokenEvent, sequence: Sequence, *, keep: bool = True) -> TokenEvent:
        """Ends a sequence of which an event says so, and adds what its pages came to."""
        assert event.finish_reason is not None
        self._end(sequence, event.finish_reason, keep=keep)
        event.kv_kib_ms = sequence.kib_ms
        return event

    def _end(self, sequence: Sequence, reason: FinishReason, *, keep: bool = True) -> None:
        for member in sequence.members:
            self._close(member, keep=keep)
            self._roster.remove(member)
            if member.context is not None:
                self.contexts.leave(member.context)
        finished = self._totals.num_finished
        finished[reason.value] = finished.get(reason.value, 0) + 1

    def _close(self, sequence: Sequence, *, keep: bool) -> None:
        """Gives the pages back, to its context or to all; what is computed stays in the cache if `keep`."""
        if sequence.table is None:
            return
        if sequence.context is not None:
            self.contexts.give_back(sequence, intact=keep)
        else:
            self.kv.close(sequence.table, sequence.token_ids[: sequence.num_computed] if keep else ())
            sequence.table = None
