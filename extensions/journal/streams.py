"""News of the engine on their way to a run that keeps a journal."""

from __future__ import annotations

import asyncio
from collections import deque
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
from extensions.journal.steps import Steps, without_proposal

if TYPE_CHECKING:
    from extensions.journal.engine import JournaledEngine


class RecordedStream:
    """Implements `engine.client.EventStream` around another, and writes down what it gives out.

    Args:
        stream: The other.
        call: Of the script, which leads to it.
        key: Names it within the run.
        num_cold: Tokens that are computed again for it.
        is_later: It goes on with what the reader was told a part of.
    """

    def __init__(self, stream: EventStream, call: Call, key: str, num_cold: int = 0, *, is_later: bool = False) -> None:
        self._stream = stream
        self._call = call
        self._journal = call.journal
        self._key = key
        self._num_cold = num_cold
        self._is_later = is_later
        self._is_over = False

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        event = await self.look()
        self.note(event)
        return event

    async def look(self) -> TokenEvent:
        """The next event, which is not written down."""
        try:
            event = await self._stream.__anext__()
        except EngineError:
            self._is_over = True
            raise
        self._count(event)
        return event

    def _count(self, event: TokenEvent) -> None:
        self._is_over = event.finish_reason is not None
        if event.num_cached_tokens is None:
            return
        if self._num_cold:
            self._journal.recompute(self._num_cold, min(event.num_cached_tokens, self._num_cold))
            self._num_cold = 0
        if self._is_later:
            event.num_cached_tokens = None  # the reader knows what it was at first

    def note(self, event: TokenEvent) -> None:
        """Writes down what the reader is given."""
        kept = msgspec.structs.replace(event, request_id="", kv_kib_ms=0)
        self._journal.put(Streamed(self._key, kept))

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """See `EventStream.divert`."""

        def note_and_take(event: TokenEvent) -> None:
            self._count(event)
            self.note(event)
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
        self._steps = Steps()
        self._ready: deque[TokenEvent] = deque()
        self._guessed = asyncio.Event()
        self._guessed.set()
        self._live: RecordedStream | None = None
        self._take: Callable[[TokenEvent], None] | None = None
        self._is_closed = False

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        if self._ready:
            return self._ready.popleft()
        if self._live is not None:
            return await self._live.__anext__()
        # Its reader was to guess here, and had read no further before that.
        await self._guessed.wait()
        if self._at < len(self._events):
            # Whoever reads changes it, and may have the run gone on with once more.
            event = msgspec.structs.replace(self._events[self._at])
            self._at += 1
            self._steps.note(event)
            if event.num_wanted:
                self._guessed.clear()
            return event
        if self._events and self._events[-1].finish_reason is not None:
            raise StopAsyncIteration
        if self._was_closed:
            # Whoever read it was cancelled while it waited here, and will be again.
            await asyncio.get_running_loop().create_future()
        return await self._go_on()

    async def _go_on(self) -> TokenEvent:
        request = self._request
        if not self._at:
            live = await self._begin(request, [])
        elif request.stepped:
            live = await self._begin(self._steps.resumed(request), self._steps.token_ids)
            await self._catch_up_with_steps(live)
        elif _must_be_drawn_again(request):
            live = await self._begin(request, [])
            await self._draw_again(live)
        else:
            num_given = len(self._steps.token_ids)
            again = msgspec.structs.replace(request, num_given=num_given, prompt_logprobs=None)
            live = await self._begin(again, self._steps.token_ids)
        if self._take is not None:
            live.divert(self._take)
        return self._ready.popleft() if self._ready else await live.__anext__()

    async def _begin(self, request: GenerateRequest, token_ids: list[int]) -> RecordedStream:
        self._engine.catch_up(request, token_ids)
        self._live = await self._engine.go_on(self._call, self._key, request, is_later=self._at > 0)
        return self._live

    async def _catch_up_with_steps(self, live: RecordedStream) -> None:
        """Has the engine do what it had been asked, as far as it has not told of that."""
        asked = self._steps.asked
        event = await live.look()
        if event.proposal is None or asked is None or (asked.num_left <= 0 and not asked.rest):
            self._give(live, event)
            return
        if not asked.rest:
            live.advance(None, asked.num_left, ())
            return
        *before, last = asked.rest
        for token_id in before:
            live.advance(token_id, 1, ())
            if not await self._pass_on_tokens(live):
                return
        live.advance(last, asked.num_steps, ())

    async def _pass_on_tokens(self, live: RecordedStream) -> bool:
        """Gives out the tokens up to the next proposal, without that; false if there is none."""
        while True:
            event = await live.look()
            self._give(live, without_proposal(event))
            if event.proposal is not None:
                return True
            if event.finish_reason is not None or event.error is not None:
                return False

    async def _draw_again(self, live: RecordedStream) -> None:
        """Has the engine draw what it had drawn, and gives out what comes behind that.

        Raises:
            NotResumable: It draws something else.
        """
        left, num_again = deque(self._steps.token_ids), len(self._steps.token_ids)
        while left:
            event = await live.look()
            count = min(len(event.token_ids), len(left))
            expected = [left.popleft() for _ in range(count)]
            if event.token_ids[:count] != expected or (left and event.finish_reason is not None):
                raise NotResumable(f"it was in the middle of a generation {_ONLY_AGAIN}, and that is another this time")
            if len(event.token_ids) > count or event.finish_reason is not None:
                self._give(live, _behind(event, count))
        self._call.journal.recompute(num_again, 0)

    def _give(self, live: RecordedStream, event: TokenEvent) -> None:
        live.note(event)
        self._ready.append(event)

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
        else:
            self._steps.advance(token_id, num_steps, banned, num_taken)

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """See `EventStream.guess`; a guess that nobody has answered is not needed for what is drawn."""
        if self._live is not None:
            self._live.guess(token_ids, proposals)
        self._guessed.set()

    async def aclose(self) -> None:
        """See `EventStream.aclose`."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._live is not None:
            await self._live.aclose()
        else:
            self._engine.catch_up(self._request, self._steps.token_ids)


_ONLY_AGAIN = "whose device program has state, or reads several contexts"


def _must_be_drawn_again(request: GenerateRequest) -> bool:
    """The engine cannot go on with it in the middle: what it depends on is nowhere but in its steps."""
    has_state = request.program is not None and "state." in request.program.source
    return has_state or bool(request.lane_ids or request.passes)


def _behind(event: TokenEvent, count: int) -> TokenEvent:
    """An event without its first tokens."""
    return msgspec.structs.replace(
        event, token_ids=event.token_ids[count:], logprobs=event.logprobs[count:], probes=event.probes[count:]
    )
