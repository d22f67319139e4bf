"""The engine's heart: schedule, run, apply. Synchronous; whoever owns it calls `step` while `has_work`.

With overlap, the step that was just scheduled starts before the results of the one before are read, so the host's
work hides behind the device's:

    host    schedule 1 | schedule 2 | wait 1, apply 1 | schedule 3 | wait 2, apply 2 | ...
    device             [ ---- step 1 ---- ][ ---- step 2 ---- ][ ---- step 3 ---- ]
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future

import msgspec

from engine.adapters.passes import PassAdapters, row_adapters
from engine.adapters.table import AdapterPlace
from engine.client import validate_request
from engine.constraints.compiler import ConstraintCompiler
from engine.constraints.constraint import Constraint
from engine.constraints.masks import MaskHandover
from engine.contexts.commands import (
    ContextCommand,
    ContextInfo,
    ExportContext,
    KeepContext,
    ReleaseContexts,
    RetainContext,
)
from engine.cuda.late_kernels import LateKernels
from engine.errors import InvalidRequest
from engine.forward.attended import validate_attention
from engine.forward.passes import validate_passes
from engine.forward.validation import validate_lanes
from engine.forward.verified import validate_guess
from engine.kv.commands import AccountCommand, SetCeilings, SetShares
from engine.kv.overview import KVMap
from engine.kv_map import KVMapper
from engine.leases.lease import LeaseRevoked
from engine.programs.binding import BoundProgram, bind_drafter, bind_drawer
from engine.programs.errors import ProgramError
from engine.programs.purposes import VERIFY
from engine.request import ConstraintSpec, DrafterSpec, EngineInfo, ErrorReport, GenerateRequest, Proposal, TokenEvent
from engine.runner.runner import ModelRunner, StepHandle
from engine.scheduling.batch import Batch
from engine.scheduling.scheduler import Scheduler
from engine.stats import AccountCharge, EngineStats
from engine.waiting import behind

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""Steps that may fail in a row before the engine gives up: a device that fails every step serves nobody."""

Prepared = Future[Constraint] | Future[None]
"""What is done beside the engine before a request can be submitted."""


class _Step(msgspec.Struct, frozen=True, eq=False, gc=False):
    batch: Batch
    handle: StepHandle
    started_s: float


class EngineLoop:
    """One engine, driven from one thread.

    Args:
        info: What it is.
        scheduler: Owns the sequences.
        runner: Owns the device.
        compiler: Compiles constraints; closed with the loop. None refuses them.
        adapters: Puts those together that passes bring. None refuses them.
        late_kernels: Counts those that the device loads while it serves; closed with the loop. None where none are.
        overlap: Schedule a step while the one before still runs.
        check_integrity: Verify the KV bookkeeping whenever the engine falls idle.
    """

    def __init__(
        self,
        *,
        info: EngineInfo,
        scheduler: Scheduler,
        runner: ModelRunner,
        compiler: ConstraintCompiler | None = None,
        adapters: PassAdapters | None = None,
        late_kernels: LateKernels | None = None,
        overlap: bool = True,
        check_integrity: bool = False,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._runner = runner
        self._compiler = compiler
        self._adapters = adapters
        self._late_kernels = late_kernels
        self._overlap = overlap
        self._checks = check_integrity
        self._running: _Step | None = None
        self._num_failed = 0
        self._step_ms = 0.0
        self._finished_s = 0.0
        self._mapper = KVMapper(scheduler)

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would do something."""
        return self._scheduler.has_work or self._running is not None

    @property
    def stats(self) -> EngineStats:
        """Present numbers; the object is the same from call to call and changes with the engine."""
        stats = self._scheduler.stats
        stats.step_ms = self._step_ms
        stats.num_late_kernels = 0 if self._late_kernels is None else self._late_kernels.count
        return stats

    @property
    def charges(self) -> list[AccountCharge]:
        """What the KV of every account has come to, up to now."""
        meter = self._scheduler.kv.meter
        meter.tick()
        return list(meter.charges())

    def warm_up(self) -> None:
        """Starts what the first request with a constraint would otherwise wait for; returns at once."""
        if self._compiler is not None:
            self._compiler.warm_up()

    def prepare(self, request: GenerateRequest) -> Prepared | None:
        """Starts what must be done beside the engine before a request can be submitted.

        Its constraint is compiled, what reads attention or computes rows with adapters of their own is made ready.

        Returns:
            What `submit` is to be given once it is done, its error the request's; None if there is nothing to do.

        Raises:
            InvalidRequest: It can never be served.
            SequenceNotFound: Its context is not there.
        """
        contexts = self._scheduler.contexts
        num_held = len(contexts[request.context_id].token_ids) if request.context_id else 0
        validate_request(request, self.info, num_held)
        if request.lane_ids or request.passes:
            lengths = [num_held, *(len(contexts[context_id].token_ids) for context_id in request.lane_ids)]
            if request.lane_ids:
                validate_lanes(request, self.info, lengths)
            if request.passes:
                validate_passes(request, lengths)
        if request.attention is not None:
            held = [request.context_id, *request.lane_ids] if request.context_id else []
            validate_attention(request, self.info, [len(contexts[context_id].token_ids) for context_id in held])
            return self._runner.prepare_attention()
        weights = self._prepare_adapters(request)
        if request.constraint is None:
            return weights
        compiled = self.compile(request.constraint)
        return compiled if weights is None else behind(weights, compiled)

    def compile(self, constraint: ConstraintSpec) -> Future[Constraint]:
        """Starts to compile a constraint, unless it is compiled already.

        Raises:
            InvalidRequest: This engine has none.
        """
        if self._compiler is None:
            raise InvalidRequest("this engine cannot constrain its output", constraint.param)
        return self._compiler.compile(constraint)

    def submit(self, request: GenerateRequest, prepared: Prepared | None = None) -> None:
        """Accepts a request, or refuses it before any work.

        Args:
            request: What is asked.
            prepared: What `prepare` returned for it; without it a constraint is compiled here and now.

        Raises:
            InvalidRequest: It can never be served.
            QueueFull: Too many wait.
            SequenceNotFound: Its context is not there.
        """
        if prepared is None:
            prepared = self.prepare(request)
        program = self._bound(request)
        if request.drafter is not None:
            self._check_drafter(request.drafter, program)
        adapters = self._row_adapters(request)
        self._scheduler.add(request, None if prepared is None else prepared.result(), program, adapters)

    def _bound(self, request: GenerateRequest) -> BoundProgram | None:
        program = request.program
        if program is None:
            return None
        try:
            num_rows = sum(len(lane.rows) for lane in request.passes)
            num_lanes, size = num_rows or 1 + len(request.lane_ids), self.info.vocab_size
            bound = bind_drawer(program.source, program.parameters, size, num_lanes=num_lanes)
        except ProgramError as error:
            raise InvalidRequest(f"the device program is not valid: {error}", program.param) from None
        contexts = self._scheduler.contexts
        token_ids = contexts[request.context_id].token_ids if request.context_id else request.prompt_ids
        validate_guess(request, bound, token_ids, size)
        return bound

    def _row_adapters(self, request: GenerateRequest) -> list[AdapterPlace]:
        if not request.passes:
            return []
        contexts = self._scheduler.contexts
        bases = [contexts[context_id].adapter for context_id in (request.context_id, *request.lane_ids)]
        return row_adapters(self._adapters, request.passes, bases)

    def _prepare_adapters(self, request: GenerateRequest) -> Future[None] | None:
        if self._adapters is None or self._adapters.is_ready or not any(lane.changes for lane in request.passes):
            return None
        self._row_adapters(request)  # what cannot be is refused before anything is loaded for it
        return self._adapters.prepare()

    def _check_drafter(self, drafter: DrafterSpec, sampler: BoundProgram | None) -> None:
        guessing = drafter.program
        if guessing is None:
            return
        try:
            bound = bind_drafter(guessing.source, guessing.parameters, self.info.vocab_size)
        except ProgramError as error:
            raise InvalidRequest(f"the device program is not valid: {error}", guessing.param) from None
        if bound.graph.weights and sampler is not None and sampler.function != VERIFY:
            message = "what a device program draws from is not known: guesses beside it cannot be drawn ones"
            raise InvalidRequest(message, guessing.param)

    def abort(self, request_id: str) -> None:
        """Ends a request at once and without an event; unknown ids pass."""
        self._scheduler.abort(request_id)

    def stop(self, request_id: str, index: int) -> None:
        """Ends one of a request's sequences because its text has come to its end; no event follows for it."""
        self._scheduler.stop(request_id, index)

    def obey(self, command: ContextCommand) -> list[TokenEvent]:
        """Does what the owner of held contexts wants; returns what that ended."""
        if isinstance(command, RetainContext | ExportContext | KeepContext):
            is_refused = self._scheduler.may_hold_no_more(command.context_id)
            if is_refused and isinstance(command, KeepContext):
                return self._scheduler.release_contexts([command.context_id])
            if is_refused:
                return []
        if isinstance(command, ReleaseContexts):
            return self._scheduler.release_contexts(command.context_ids)
        self._scheduler.contexts.obey(command)
        return []

    def govern(self, command: AccountCommand) -> None:
        """Does what whoever looks after tenants wants with accounts."""
        match command:
            case SetCeilings(ceilings, levels):
                self._scheduler.ceilings.set(ceilings, levels)
            case SetShares(weights):
                self._scheduler.shares.set_weights(weights)

    @property
    def wants_tending(self) -> bool:
        """True if something happens by time alone, so that `tend` must be called while nothing runs too."""
        contexts = self._scheduler.contexts
        timed = (contexts.leases, contexts.kept, contexts.exports)
        return bool(self._scheduler.ceilings) or any(len(each) > 0 for each in timed)

    def tend(self) -> list[TokenEvent]:
        """Does what is due by time alone, and returns what that ended; to be called a few times a second."""
        return self._scheduler.tend()

    def take_revoked(self) -> list[LeaseRevoked]:
        """Leases that ended before their holders ended them, since the last call."""
        leases = self._scheduler.contexts.leases
        revoked, leases.revoked = leases.revoked, []
        return revoked

    def is_of_nobody(self, context_id: str) -> bool:
        """True for what anybody may ask about who knows its name: exports, and what is kept."""
        contexts = self._scheduler.contexts
        return context_id in contexts.exports or context_id in contexts.kept

    def is_exported(self, context_id: str) -> bool:
        """True for what anybody may import."""
        return context_id in self._scheduler.contexts.exports

    def describe_context(self, context_id: str) -> ContextInfo:
        """What a held context holds now."""
        return self._scheduler.contexts.describe(context_id)

    def describe_kv(self) -> KVMap:
        """Who holds the KV pool now."""
        return self._mapper.draw()

    def advance(
        self, request_id: str, token_id: int | None, num_steps: int, banned: Sequence[int] = (), num_taken: int = 0
    ) -> list[TokenEvent]:
        """Goes on with a stepped request that is paused; see `engine.scheduling.stepping`. Others are left alone.

        Args:
            request_id: Which.
            token_id: The token to take; None takes the one proposed.
            num_steps: Draws until it pauses again.
            banned: Tokens that may not be drawn from now on.
            num_taken: Proposals that are taken before that.
        """
        return self._scheduler.stepping.advance(request_id, token_id, num_steps, banned, num_taken)

    def guess(self, request_id: str, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """Gives a request the guess that it waits for; see `engine.messages.Guess`. Others are left alone."""
        self._scheduler.guess(request_id, token_ids, proposals)

    def step(self) -> list[TokenEvent]:
        """Starts the next step and returns the events of one that has finished; may return none."""
        previous = self._running
        events: list[TokenEvent] = []
        if previous is not None and self._scheduler.waits:
            # Whoever asks meanwhile is in the next step, which the next call starts.
            self._running = None
            return self._finish(previous)
        if previous is not None and (previous.batch.num_drafts or previous.batch.is_awaited):
            # What comes next depends on how many guesses are right: waiting for that costs less than a step without.
            self._running = None
            events += self._finish(previous)
            previous = None
        self._running = self._start() if self._scheduler.has_work else None
        try:
            events += self._finish(previous) if previous is not None else []
            if self._running is not None and self._running.batch.masks is not None:
                events += self._constrain(self._running.batch, self._running.batch.masks)
        except BaseException:
            if self._running is not None and self._running.batch.masks is not None:
                self._running.batch.masks.give_up()
            raise
        if not self._overlap and self._running is not None:
            previous, self._running = self._running, None
            events += self._finish(previous)
        if self._checks and not self.has_work:
            self._scheduler.check_integrity()
        return events

    def clear_cache(self) -> int:
        """Frees every page that only the prefix cache holds, and returns how many."""
        return self._scheduler.kv.clear_cache()

    def check_integrity(self) -> None:
        """Raises AssertionError unless pages and living sequences agree."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Waits for the device and lets go of it. Idempotent."""
        self._runner.close()
        if self._late_kernels is not None:
            self._late_kernels.close()
        if self._compiler is not None:
            self._compiler.close()

    def _constrain(self, batch: Batch, handover: MaskHandover) -> list[TokenEvent]:
        """Gives a step that has begun the masks it will need."""
        masks, events = self._scheduler.constrain(batch)
        handover.give(masks)
        return events

    def _start(self) -> _Step | None:
        batch = self._scheduler.schedule()
        if not batch.lanes:
            return None
        return _Step(batch, self._runner.submit(batch), time.perf_counter())

    def _finish(self, step: _Step) -> list[TokenEvent]:
        try:
            results = step.handle()
        except Exception as error:
            return self._failed(step, error)
        self._num_failed = 0
        now_s = time.perf_counter()
        self._step_ms = (now_s - step.started_s) * 1e3
        seconds = now_s - max(step.started_s, self._finished_s)
        self._finished_s = now_s
        return self._scheduler.apply(step.batch, results, seconds)

    def _failed(self, step: _Step, error: Exception) -> list[TokenEvent]:
        """Ends those who were in the step, so that one bad step costs no one else.

        Raises:
            Exception: The step's own error, once too many failed in a row.
        """
        log.exception("a step of %d lanes failed", len(step.batch.lanes), exc_info=error)
        self._num_failed += 1
        if self._num_failed >= MAX_FAILED_STEPS:
            raise error
        report = ErrorReport("EngineError", f"the step failed: {type(error).__name__}: {error}"[:500])
        return self._scheduler.fail(step.batch, report)
