"""The engine's one door, as its callers see it: in-process, in a child process, or scripted for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Protocol

from engine.adapters.table import unknown_adapter
from engine.contexts.commands import ContextCommand, ContextInfo
from engine.drafting.limits import check_drafter
from engine.errors import ContextTooLong, InvalidRequest, UnsupportedReadout
from engine.kv.commands import AccountCommand
from engine.kv.overview import KVMap
from engine.leases.lease import LeaseRevoked
from engine.request import ConstraintSpec, DrafterSpec, EngineInfo, GenerateRequest, ProgramSpec, Proposal, TokenEvent
from engine.sampling.params import MAX_LOGPROBS
from engine.stats import AccountCharge, EngineStats


class EventStream(Protocol):
    """Events of one accepted request, in order per sequence, until each of its `n` sequences has finished.

    Iterating raises `EngineStopped` if the engine ends first. Events that pile up while nobody reads are merged, so a
    slow reader costs memory for its own tokens alone.
    """

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...

    async def __anext__(self) -> TokenEvent: ...

    async def stop_sequence(self, index: int) -> None:
        """Ends one of the request's `n` sequences; its pages are free within one step and no event follows for it."""
        ...

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """Goes on with a stepped request that is paused; see `engine.messages.Advance`. Its events tell the outcome."""
        ...

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """Answers a request that waits for a guess; see `engine.messages.Guess`. Its events tell what came of it."""
        ...

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """Gives `take` the events that come while the reader waits; the reader waits on.

        It spares waking the reader's task for every token. The first event of a sequence and its last are the reader's
        even so, and so is whatever comes while it does something else. What `take` raises is raised to the reader.
        """
        ...

    async def aclose(self) -> None:
        """Ends the request if it still runs: its pages are free within one step. Idempotent; never raises."""
        ...


class EngineClient(Protocol):
    """Submit work, read numbers. Safe for many concurrent callers of one event loop."""

    @property
    def info(self) -> EngineInfo:
        """What the engine is. Raises `EngineStopped` while none is connected."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The newest snapshot received; at most about a second old while the engine works."""
        ...

    @property
    def charges(self) -> Mapping[str, AccountCharge]:
        """What the KV of each account has come to since the engine's `incarnation` began; at most a second old."""
        ...

    @property
    def is_ready(self) -> bool:
        """True while an engine is connected and takes requests."""
        ...

    async def submit(self, request: GenerateRequest) -> EventStream:
        """Hands over one request and waits until the engine has accepted it.

        Raises:
            InvalidRequest: It can never be served (`ContextTooLong` if it does not fit).
            QueueFull: Too many wait already.
            QuotaExceeded: Its account was charged for as much KV as it may be.
            EngineStopped: No engine is there.
            SequenceNotFound: Its context is not there.
            LeaseLost: What was kept for its context is gone, and its holder wanted to be told so.
        """
        ...

    async def compile(self, constraint: ConstraintSpec) -> None:
        """Has a constraint compiled before a request needs it, and waits until it is.

        Raises:
            InvalidRequest: It cannot be compiled.
            QueueFull: Too many are being compiled already.
            EngineStopped: No engine is there.
        """
        ...

    def tell(self, command: ContextCommand | AccountCommand) -> None:
        """Passes on what the owner of held contexts or whoever looks after tenants wants, in order with its requests.

        Lost if no engine is there.
        """
        ...

    async def describe_context(self, context_id: str) -> ContextInfo:
        """What a held context holds now; nothing if the engine does not know it.

        Raises:
            EngineStopped: No engine is there.
        """
        ...

    async def describe_kv(self) -> KVMap:
        """Who holds the KV pool now, page by page.

        Raises:
            EngineStopped: No engine is there.
        """
        ...

    def watch_lease(self, lease_id: str, told: Callable[[LeaseRevoked], None]) -> None:
        """Has news of a lease's end passed on: that it was revoked, or that the engine went away."""
        ...

    def unwatch_lease(self, lease_id: str) -> None:
        """Nobody wants news of a lease any more. Idempotent."""
        ...

    async def close(self) -> None:
        """Ends every stream with `EngineStopped` and lets go of the engine. Idempotent."""
        ...


def validate_request(request: GenerateRequest, info: EngineInfo, num_held: int = 0) -> None:
    """Refuses what could never be served, before any work. Pure; both sides of the door call it.

    Args:
        request: What is asked.
        info: Of the engine.
        num_held: Length of its context, if it names one.

    Raises:
        InvalidRequest: A field is out of range; `param` names it.
        UnsupportedReadout: The model cannot generate.
        UnknownAdapter: It names an adapter that is not there.
        ContextTooLong: Prompt plus `max_tokens` exceed the context or the whole KV pool.
    """
    if request.adapter and request.adapter not in (names := [one.name for one in info.adapters]):
        raise unknown_adapter(request.adapter, names)
    if request.context_id:
        _check_context(request, num_held)
    elif request.num_given:
        raise InvalidRequest("only on a held context something is given already", "num_given")
    elif not request.prompt_ids:
        raise InvalidRequest("the prompt is empty", "prompt_ids")
    elif min(request.prompt_ids) < 0 or max(request.prompt_ids) >= info.vocab_size:
        raise InvalidRequest(f"the prompt holds ids outside the vocabulary of {info.vocab_size}", "prompt_ids")
    if not 1 <= request.n <= 128:
        raise InvalidRequest(f"n must be between 1 and 128, got {request.n}", "n")
    if request.prompt_logprobs is not None and not 0 <= request.prompt_logprobs <= MAX_LOGPROBS:
        raise InvalidRequest(f"prompt_logprobs must be between 0 and {MAX_LOGPROBS}", "prompt_logprobs")
    if request.pooling is not None:
        _check_pooling(request)
    elif not info.generates:
        raise UnsupportedReadout("this model has no head: it makes embeddings, and cannot continue a text", "model")
    if not request.passes and (request.stepped or request.readout is not None):
        _check_stepped(request)
    if request.program is not None:
        _check_program(request, request.program)
    if request.drafter is not None:
        _check_drafter(request, request.drafter, info.vocab_size)
    request.sampling.validate(info.vocab_size)
    num_prompt = num_held - request.num_given if request.context_id else len(request.prompt_ids)
    if num_prompt + request.sampling.max_tokens > info.limit_tokens:
        raise ContextTooLong(info.limit_tokens, num_prompt, request.sampling.max_tokens)


def _check_context(request: GenerateRequest, num_held: int) -> None:
    """Refuses what a held context cannot be asked for."""
    if request.prompt_ids:
        raise InvalidRequest("a request on a held context brings no prompt", "prompt_ids")
    if request.adapter:
        raise InvalidRequest("a held context has its own adapter", "adapter")
    if request.n != 1:
        raise InvalidRequest("one context has one continuation: fork it for more", "n")
    if request.pooling is not None:
        raise InvalidRequest("an embedding is made of a prompt, not of a held context", "pooling")
    if num_held == 0:
        raise InvalidRequest("the context is empty", "context_id")
    _check_given(request, num_held)


def _check_given(request: GenerateRequest, num_held: int) -> None:
    """Refuses to go on where that cannot be."""
    num_given = request.num_given
    if not num_given:
        return
    if request.lane_ids or request.passes or request.prompt_logprobs is not None:
        raise InvalidRequest("only a generation of one context can be gone on with", "num_given")
    if not 0 < num_given < num_held or num_given >= request.sampling.max_tokens:
        raise InvalidRequest(
            f"num_given must be below the context's length and max_tokens, got {num_given}", "num_given"
        )


def _check_stepped(request: GenerateRequest) -> None:
    """Refuses what does not go with pausing after each draw."""
    if not request.stepped:
        raise InvalidRequest("only a stepped request reads distributions", "readout")
    if request.drafter is not None:
        raise InvalidRequest("a stepped request pauses after each draw: nothing can be guessed", request.drafter.param)
    if not request.context_id:
        raise InvalidRequest("only a held context is stepped", "stepped")
    if request.sampling.max_tokens < 1:
        raise InvalidRequest("a stepped request draws at least one token", "max_tokens")
    if request.sampling.logprobs is not None or request.prompt_logprobs is not None:
        raise InvalidRequest("a stepped request reports distributions instead of log-probabilities", "logprobs")
    if request.readout is not None:
        if request.readout.top < -1:
            raise InvalidRequest("top must be -1 for all, or at least 0", "top")
        if not 0.0 <= request.readout.need_mass <= 1.0:
            raise InvalidRequest("need_mass must be between 0 and 1", "need_mass")


def _check_program(request: GenerateRequest, program: ProgramSpec) -> None:
    """Refuses what does not go with a device program; the program itself is checked where it is bound."""
    if request.stepped or request.pooling is not None:
        raise InvalidRequest("a device program draws by itself: nobody can choose tokens beside it", program.param)


def _check_drafter(request: GenerateRequest, drafter: DrafterSpec, vocab_size: int) -> None:
    """Refuses guesses that make no sense, or do not go with what else is asked."""
    check_drafter(drafter, vocab_size)
    if (drafter.given or drafter.program is not None) and (request.lane_ids or request.passes):
        raise InvalidRequest("lanes that draw together take no guesses of their caller or a program", drafter.param)
    if drafter.given and not request.context_id:
        raise InvalidRequest("only on a held context the caller can guess", drafter.param)


def _check_pooling(request: GenerateRequest) -> None:
    """Refuses an embedding of what is generated: only a prompt has one."""
    is_prompt_alone = request.sampling.max_tokens == 0 and request.n == 1
    if not is_prompt_alone or request.prompt_logprobs is not None or request.constraint is not None:
        raise InvalidRequest("an embedding is made of a prompt alone: nothing is generated or scored", "pooling")
