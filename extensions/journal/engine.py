"""The engine as a run sees it that keeps a journal: what it has said is not computed again.

The contexts of a run that is gone on with are opened anew. Tokens that the engine had drawn are appended to them, and
computed with all else when something is drawn next: never drawn again. A generation that was cut off goes on where it
was, as one of which so many tokens are there already.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import msgspec

from engine.client import EngineClient, EventStream
from engine.contexts.commands import (
    AppendTokens,
    ContextCommand,
    ContextInfo,
    ForkContext,
    OpenContext,
    ReleaseContexts,
    TruncateContext,
)
from engine.errors import EngineStopped, SequenceNotFound
from engine.kv.commands import AccountCommand
from engine.kv.overview import KVMap
from engine.leases.lease import LeaseRevoked
from engine.request import ConstraintSpec, EngineInfo, GenerateRequest
from engine.stats import AccountCharge, EngineStats
from extensions.journal.digests import digest_of
from extensions.journal.effects import code_and_message, told
from extensions.journal.entries import Begun, Done
from extensions.journal.journal import Call, current
from extensions.journal.streams import RecordedStream, ReplayedStream

_SEED_BITS = 62


class JournaledEngine:
    """Implements `engine.client.EngineClient` around another, for the contexts of one run.

    Args:
        engine: The other.
    """

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._lengths: dict[str, int] = {}
        self._cold: dict[str, int] = {}

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        return self._engine.info

    @property
    def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        return self._engine.stats

    @property
    def charges(self) -> Mapping[str, AccountCharge]:
        """See `EngineClient.charges`."""
        return self._engine.charges

    @property
    def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return self._engine.is_ready

    async def submit(self, request: GenerateRequest) -> EventStream:
        """See `EngineClient.submit`.

        Raises:
            ReplayDiverged: The run asked something else before.
        """
        call = current()
        if call is None:
            return await self._engine.submit(request)
        digest = _digest(request)
        key = call.key("engine", digest)
        refused = call.journal.done(key, digest)
        if refused is not None:
            raise told(refused.error)
        known = call.journal.begun(key, digest)
        if known is not None:
            seeded = _seeded(request, known.seed)
            return ReplayedStream(self, call, key, seeded, call.journal.replay)
        return await self._begin(call, key, digest, request)

    async def _begin(self, call: Call, key: str, digest: str, request: GenerateRequest) -> EventStream:
        given = request.sampling.seed
        seed = secrets.randbits(_SEED_BITS) if given is None else given
        try:
            stream = await self.go_on(call, key, _seeded(request, seed))
        except SequenceNotFound:
            call.give_back(key, digest)
            raise
        except Exception as error:
            if (seen := code_and_message(error)) is not None:
                call.journal.put(Done(key, digest, None, seen))
            raise
        call.journal.put(Begun(key, digest, seed))
        return stream

    async def go_on(self, call: Call, key: str, request: GenerateRequest, *, is_later: bool = False) -> RecordedStream:
        """Has the engine compute, and writes down what it says. Tokens that it had computed before are counted again.

        Args:
            call: Of the script, which leads to it.
            key: Names it within the run.
            request: What is asked.
            is_later: The reader was told a part of it.

        Raises:
            EngineError: What `EngineClient.submit` raises.
        """
        stream = await self._engine.submit(request)
        num_cold = sum(self._cold.pop(one, 0) for one in (request.context_id, *request.lane_ids))
        return RecordedStream(stream, call, key, num_cold, is_later=is_later)

    async def compile(self, constraint: ConstraintSpec) -> None:
        """See `EngineClient.compile`."""
        await self._engine.compile(constraint)

    def catch_up(self, request: GenerateRequest, token_ids: list[int]) -> None:
        """The engine is told what it had drawn in an earlier life."""
        for context_id in (request.context_id, *request.lane_ids):
            if token_ids:
                self.tell(AppendTokens(context_id, token_ids))
            self._cold[context_id] = self._lengths.get(context_id, 0)

    def tell(self, command: ContextCommand | AccountCommand) -> None:
        """See `EngineClient.tell`."""
        self._note(command)
        self._engine.tell(command)

    def _note(self, command: ContextCommand | AccountCommand) -> None:
        lengths, cold = self._lengths, self._cold
        match command:
            case OpenContext(context_id):
                lengths[context_id] = 0
            case AppendTokens(context_id, token_ids):
                lengths[context_id] = lengths.get(context_id, 0) + len(token_ids)
            case TruncateContext(context_id, length):
                lengths[context_id] = min(length, lengths.get(context_id, length))
                if context_id in cold:
                    cold[context_id] = min(cold[context_id], length)
            case ForkContext(context_id, new_ids):
                for new_id in new_ids:
                    lengths[new_id] = lengths.get(context_id, 0)
                    if context_id in cold:
                        cold[new_id] = cold[context_id]
            case ReleaseContexts(context_ids):
                for context_id in context_ids:
                    lengths.pop(context_id, None)
                    cold.pop(context_id, None)

    async def describe_context(self, context_id: str) -> ContextInfo:
        """See `EngineClient.describe_context`."""
        return await self._engine.describe_context(context_id)

    async def describe_kv(self) -> KVMap:
        """See `EngineClient.describe_kv`."""
        return await self._engine.describe_kv()

    def watch_lease(self, lease_id: str, told: Callable[[LeaseRevoked], None]) -> None:
        """See `EngineClient.watch_lease`."""
        self._engine.watch_lease(lease_id, told)

    def unwatch_lease(self, lease_id: str) -> None:
        """See `EngineClient.unwatch_lease`."""
        self._engine.unwatch_lease(lease_id)

    async def close(self) -> None:
        """The other is somebody else's.

        Raises:
            EngineStopped: Always.
        """
        raise EngineStopped("the engine of a run is not the run's to close")


def _digest(request: GenerateRequest) -> str:
    # How many tokens the run may still generate depends on what it generates at the same time.
    sampling = msgspec.structs.replace(request.sampling, max_tokens=0)
    lane_ids = [""] * len(request.lane_ids)
    named = msgspec.structs.replace(
        request, request_id="", context_id="", lane_ids=lane_ids, account="", salt="", sampling=sampling
    )
    return digest_of(named)


def _seeded(request: GenerateRequest, seed: int | None) -> GenerateRequest:
    return msgspec.structs.replace(request, sampling=msgspec.structs.replace(request.sampling, seed=seed))
