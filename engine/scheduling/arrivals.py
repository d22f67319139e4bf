"""Requests that become sequences: one for each continuation, or one for each lane of a pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Sequence as ListOf

import msgspec

from engine.adapters.table import NO_ADAPTER, AdapterPlace, AdapterTable
from engine.constraints.constraint import Constraint
from engine.contexts.held import HeldContext
from engine.contexts.registry import ContextRegistry
from engine.drafting.planning import DraftPlanner
from engine.errors import InvalidRequest, QueueFull
from engine.forward.lockstep import LaneGroup
from engine.forward.verified import pass_offers
from engine.kv.manager import KVManager
from engine.programs.binding import BoundProgram
from engine.programs.session import ProgramSession
from engine.request import GenerateRequest
from engine.sampling.random import stream_key
from engine.scheduling.limits import Limits
from engine.scheduling.plain import is_plain
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.sequence import Sequence


class Arrivals:
    """Puts the sequences of validated requests on the roster, where they wait for admission.

    Args:
        kv: The pool, for who pays.
        roster: Who lives.
        contexts: Histories that requests may compute on.
        shares: Learns which accounts want the device.
        limits: Refuses accounts that may hold no more.
        drafts: Gives drafters.
        adapters: Those that requests may name.
        draw_seed: Gives a seed to requests that bring none.
        eos_token_ids: The model's end ids.
        max_waiting: Sequences that may wait.
    """

    def __init__(
        self,
        kv: KVManager,
        roster: Roster,
        contexts: ContextRegistry,
        shares: FairShares,
        limits: Limits,
        drafts: DraftPlanner,
        adapters: AdapterTable,
        draw_seed: Callable[[], int],
        eos_token_ids: tuple[int, ...],
        max_waiting: int,
    ) -> None:
        self._kv = kv
        self._roster = roster
        self._contexts = contexts
        self._shares = shares
        self._limits = limits
        self._drafts = drafts
        self._adapters = adapters
        self._draw_seed = draw_seed
        self._eos = eos_token_ids
        self._max_waiting = max_waiting
        self._numbers = itertools.count()

    def add(
        self,
        request: GenerateRequest,
        constraint: Constraint | None = None,
        program: BoundProgram | None = None,
        row_adapters: ListOf[AdapterPlace] = (),
    ) -> None:
        """See `engine.scheduling.scheduler.Scheduler.add`."""
        if len(self._roster.waiting) + request.n + len(request.lane_ids) > self._max_waiting:
            raise QueueFull(len(self._roster.waiting))
        assert request.request_id not in self._roster, "request ids are unique"
        if request.lane_ids:
            sequences = self._lanes(request, constraint, program, row_adapters)
        else:
            sequences = self._continuations(request, constraint, program, row_adapters)
        account = sequences[0].payer.account
        if account not in self._roster.accounts:
            self._shares.join(account, self._roster.accounts, self._kv.meter.now)
        self._shares.note(account, self._kv.meter.now)
        self._roster.add(sequences)

    def _continuations(
        self,
        request: GenerateRequest,
        constraint: Constraint | None,
        program: BoundProgram | None,
        row_adapters: ListOf[AdapterPlace],
    ) -> list[Sequence]:
        """The `n` sequences of one prompt, or the one of a context; the first computes the prompt for all."""
        seed, stop_ids = self._seed(request), self._stop_ids(request)
        sequences: list[Sequence] = []
        context = self._contexts.claim(request.context_id) if request.context_id else None
        self._limits.check(request.account if context is None else context.payer.account, context)
        adapter = self._adapters.find(request.adapter if context is None else context.adapter)
        for index in range(request.n):
            token_ids = list(request.prompt_ids) if context is None else context.token_ids
            payer = self._kv.meter.payer(request.account) if context is None else context.payer
            sequence = Sequence(request, index, next(self._numbers), seed, stop_ids, payer, token_ids, context=context)
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
            sequences.append(sequence)
        if context is not None:
            self._begin(context, sequences[0], 0)
        for sequence in sequences:
            sequence.is_plain = is_plain(sequence)
        return sequences

    def _lanes(
        self,
        request: GenerateRequest,
        constraint: Constraint | None,
        program: BoundProgram | None,
        row_adapters: ListOf[AdapterPlace],
    ) -> list[Sequence]:
        """One sequence for each lane of a request, which draw together; the first is held to the constraint."""
        assert program is not None, "lanes draw by a program"
        num_lanes = 1 + len(request.lane_ids)
        if num_lanes > self._roster.num_rows:
            raise InvalidRequest(f"{num_lanes} lanes; {self._roster.num_rows} sequences run at once here", "lane_ids")
        seed, stop_ids = self._seed(request), self._stop_ids(request)
        contexts = [self._contexts.claim(context_id) for context_id in (request.context_id, *request.lane_ids)]
        adapters = [self._adapters.find(context.adapter) for context in contexts]
        account = contexts[0].payer.account
        if any(context.payer.account != account for context in contexts):
            raise InvalidRequest("lanes that draw together belong to one account", "lane_ids")
        self._limits.check(account)
        num_rows = sum(len(lane.rows) for lane in request.passes)
        session = ProgramSession(program, stream_key(seed, 0), len(contexts[0].token_ids), num_lanes, num_rows)
        members: list[Sequence] = []
        for context, adapter in zip(contexts, adapters, strict=True):
            sequence = Sequence(
                request, 0, next(self._numbers), seed, stop_ids, context.payer, context.token_ids, context=context
            )
            sequence.program, sequence.adapter = session, adapter
            sequence.row_adapter = row_adapters[len(members)] if row_adapters else NO_ADAPTER
            self._begin(context, sequence, len(members))
            members.append(sequence)
        members[0].constraint = None if constraint is None else constraint.fork()
        group = LaneGroup(tuple(members))
        for member in members:
            member.group = group
        return members

    def _seed(self, request: GenerateRequest) -> int:
        return self._draw_seed() if request.sampling.seed is None else request.sampling.seed

    def _stop_ids(self, request: GenerateRequest) -> frozenset[int]:
        params = request.sampling
        return frozenset(params.stop_token_ids).union(() if params.ignore_eos else self._eos)

    def _begin(self, context: HeldContext, sequence: Sequence, lane: int) -> None:
        """A sequence is to compute on its context, as a lane of its request."""
        passes = sequence.request.passes
        shape = passes[lane].shape if passes else None
        if shape is not None and sequence.row_adapter.number >= 0:
            shape = msgspec.structs.replace(shape, adapter=sequence.row_adapter.digest)
        self._contexts.begin(context, sequence, shape)
        if passes:
            sequence.reads = passes[lane].rows
            sequence.first_read = sum(len(one.rows) for one in passes[:lane])
