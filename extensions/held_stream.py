"""Events of a request on a held context, and what they added to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from engine.client import EventStream
from engine.errors import EngineError
from engine.request import FinishReason, Proposal, TokenEvent
from extensions.context_link import ContextLink


class HeldStream:
    """Implements `engine.client.EventStream` around another, and writes down what its reader was given.

    Attributes:
        on_close: Called once, when the reader has closed the stream.
        on_wanted: Called when the engine waits for a guess of as many tokens at most; this stream takes it.
        token_ids: Tokens given out so far.
        further: Tokens behind those that the reader has taken, and that the engine may know of or not.
        has_failed: It ended with an error.
        has_finished: The engine ended it by itself, without an error.

    Args:
        stream: The other.
        link: Of the context; told what its KV was charged. The reader is told what of that is new.
    """

    def __init__(self, stream: EventStream, link: ContextLink) -> None:
        self._stream = stream
        self._link = link
        self._charged_before = link.kv_kib_ms
        self.on_close: Callable[[], None] | None = None
        self.on_wanted: Callable[[HeldStream, int], None] | None = None
        self.token_ids: list[int] = []
        self.further: list[int] = []
        self.has_failed = False
        self.has_finished = False

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        try:
            event = await self._stream.__anext__()
        except EngineError:
            self.has_failed = True
            raise
        self._note(event)
        return event

    def _note(self, event: TokenEvent) -> None:
        self.token_ids += event.token_ids
        self._link.note_charge(event.kv_kib_ms)
        event.kv_kib_ms = self._link.kv_kib_ms - self._charged_before
        if event.num_wanted and self.on_wanted is not None:
            self.on_wanted(self, event.num_wanted)
        if event.finish_reason is not None:
            self.has_failed = event.finish_reason is FinishReason.ERROR
            self.has_finished = not self.has_failed

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """See `EventStream.divert`."""

        def note_and_take(event: TokenEvent) -> None:
            self._note(event)
            take(event)

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
        await self._stream.aclose()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()
