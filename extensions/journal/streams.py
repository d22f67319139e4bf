"""News of the engine on their way to a run that keeps a journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.client import EventStream
from engine.errors import EngineError
from engine.request import GenerateRequest, Proposal, TokenEvent
from extensions.errors import NotResumable
from extensions.journal.entries import Closed, Streamed
from extensions.journal.journal import Call
from extensions.journal.replay import Replay

if TYPE_CHECKING:
    from extensions.journal.engine import JournaledEngine


class RecordedStream:
    """Implements `engine.client.EventStream` around another, and writes down what it gives out.

    Args:
        stream: The other.
        call: Of the script, which leads to it.
        key: Names it within the run.
        num_cold: Tokens that are computed again for it.
    """

    def __init__(self, stream: EventStream, call: Call, key: str, num_cold: int) -> None:
        self._stream = stream
        self._call = call
        self._journal = call.journal
        self._key = key
        self._num_cold = num_cold
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        try:
            event = await self._stream.__anext__()
        except EngineError:
            self._is_over = True
            raise
        self._note(event)
        return event

    def _note(self, event: TokenEvent) -> None:
        self._is_over = event.finish_reason is not None
        if self._num_cold and event.num_cached_tokens is not None:
            self._journal.recompute(self._num_cold, min(event.num_cached_tokens, self._num_cold))
            self._num_cold = 0
        kept = msgspec.structs.replace(event, request_id="", kv_kib_ms=0)
        self._journal.put(Streamed(self._key, kept))

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """See `EventStream.divert`."""

        def note_and_take(event: TokenEvent) -> None:
            self._note(event)
            self._call.run(take, (event,), {})  # whoever brings it answers no call

        self._stream.divert(note_and_take)

    async def stop_sequence(self, index: int) -> None:
        """See `EventStream.stop_sequence`."""
        await self._stream.stop_sequence(index)

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """See `EventStream.advance`."""
        self._stream.advance(token_id, num_steps, banned, num_taken)

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """See `EventStream.guess`."""
        self._stream.guess(token_ids, proposals)

    async def aclose(self) -> None:
        """See `EventStream.aclose`."""
        if not self._is_over:
            self._is_over = True
            self._journal.put(Closed(self._key))
        await self._stream.aclose()


class ReplayedStream:
    """Implements `engine.client.EventStream` with what is written down, and where that ends with what the engine says.

    Args:
        engine: Asked for the rest.
        call: Of the script, which leads to it.
        key: Names it within the run.
        request: What was asked.
        replay: What is written down.
    """

    def __init__(self, engine: JournaledEngine, call: Call, key: str, request: GenerateRequest, replay: Replay) -> None:
        self._engine = engine
        self._call = call
        self._key = key
        self._request = request
        self._events = replay.events.get(key, [])
        self._was_closed = key in replay.closed
        self._at = 0
        self._token_ids: list[int] = []
        self._live: RecordedStream | None = None
        self._take: Callable[[TokenEvent], None] | None = None
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        if self._live is not None:
            return await self._live.__anext__()
        if self._at < len(self._events):
            # Whoever reads changes it, and may have the run gone on with once more.
            event = msgspec.structs.replace(self._events[self._at])
            self._at += 1
            self._token_ids += event.token_ids
            return event
        if self._events and self._events[-1].finish_reason is not None:
            raise StopAsyncIteration
        if self._was_closed:
            # Whoever read it was cancelled while it waited here, and will be again.
            await asyncio.get_running_loop().create_future()
        return await self._go_on()

    async def _go_on(self) -> TokenEvent:
        request, num_given = self._request, len(self._token_ids)
        if self._at:
            _check_can_go_on(request)
        self._engine.catch_up(request, self._token_ids)
        if num_given:
            request = msgspec.structs.replace(request, num_given=num_given)
        self._live = await self._engine.go_on(self._call, self._key, request)
        if self._take is not None:
            self._live.divert(self._take)
        return await self._live.__anext__()

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """See `EventStream.divert`: what is written down is the reader's."""
        self._take = take
        if self._live is not None:
            self._live.divert(take)

    async def stop_sequence(self, index: int) -> None:
        """See `EventStream.stop_sequence`."""
        if self._live is not None:
            await self._live.stop_sequence(index)

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """See `EventStream.advance`."""
        if self._live is not None:
            self._live.advance(token_id, num_steps, banned, num_taken)

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """See `EventStream.guess`."""
        if self._live is not None:
            self._live.guess(token_ids, proposals)

    async def aclose(self) -> None:
        """See `EventStream.aclose`."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._live is not None:
            await self._live.aclose()
        else:
            self._engine.catch_up(self._request, self._token_ids)


def _check_can_go_on(request: GenerateRequest) -> None:
    """Refuses what the engine cannot go on with in the middle.

    Raises:
        NotResumable: It cannot.
    """
    if request.program is not None and "state." in request.program.source:
        raise NotResumable("it was in the middle of a generation whose device program has state")
    is_guessed = request.drafter is not None and request.drafter.given
    if request.stepped or is_guessed or request.lane_ids or request.passes or request.prompt_logprobs is not None:
        raise NotResumable("it was in the middle of a generation that it decides step by step")
