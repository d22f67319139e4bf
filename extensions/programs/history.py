"""A token history as a script edits it: text, tokens and messages, with what is known of the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extensions.programs.faults import invalid
from extensions.programs.scope import INLINE_CHARS, RunScope
from extensions.programs.transcript import Edit, Message, Transcript

if TYPE_CHECKING:
    from extensions.live_context import LiveContext, Mark


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a history, to come back to.

    Attributes:
        mark: The place.
        transcript: What was known of the history there.
    """

    mark: Mark
    transcript: Transcript


class History:
    """One history. One thing at a time happens to it; whatever comes meanwhile is refused.

    Attributes:
        live: Its tokens, and what the engine holds of them.
    """

    def __init__(
        self, scope: RunScope, live: LiveContext, transcript: Transcript | None = None, num_charged: int = 0
    ) -> None:
        self.live = live
        self._scope = scope
        self._transcript = transcript or Transcript()
        self._num_charged = num_charged
        self._is_editing = False
        self._is_growing = False
        self._branching = asyncio.Lock()

    # -- changes ----------------------------------------------------------------------------------------------------

    async def append_text(self, text: str, *, is_first: bool = False) -> None:
        """Adds text; behind messages it is the beginning of the answer to them."""
        with self._editing():
            ids = await self._scope.encode(text, "content", add_special=is_first)
            await self._open_answer()
            self._append(ids)

    def append_ids(self, ids: list[int]) -> None:
        """Adds tokens as they are."""
        with self._editing():
            self._append(ids)

    async def append_messages(self, messages: Sequence[Message]) -> None:
        """Adds messages as the chat template writes them."""
        with self._editing():
            writer, transcript, history = self._scope.writer, self._transcript, self.live.token_ids
            await self._rewrite(lambda: writer.append(transcript, history, messages), messages)

    async def offer(self, tools: Sequence[Message]) -> None:
        """Tells the model of tools, in OpenAI's form."""
        with self._editing():
            writer, transcript, history = self._scope.writer, self._transcript, self.live.token_ids
            await self._rewrite(lambda: writer.offer(transcript, history, tools), ())

    @property
    def tool_names(self) -> list[str]:
        """Tools that the model was told of."""
        offered = (*self._scope.request.tools, *self._transcript.tools)
        return [str(tool.get("function", {}).get("name", "")) for tool in offered]

    def fork(self, count: int) -> list[History]:
        """Copies; what is pending is charged to this one, for it is computed once."""
        with self._editing():
            self._scope.guard.open_contexts(count)
            self._charge()
            return [History(self._scope, live, self._transcript, self._num_charged) for live in self.live.fork(count)]

    @property
    def transcript(self) -> Transcript:
        """What is known of it as a conversation."""
        return self._transcript

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """It is kept as it is: nothing changes meanwhile."""
        with self._editing():
            yield

    def place(self) -> Place:
        """The end of the history."""
        with self._editing():
            return Place(self.live.mark(), self._transcript)

    def rewind(self, place: Place) -> None:
        """Goes back."""
        with self._editing():
            self.live.rewind(place.mark)
            self._transcript = place.transcript
            self._num_charged = min(self._num_charged, self.live.length)

    def truncate(self, length: int) -> None:
        """Keeps the first tokens."""
        with self._editing():
            is_change = length != self.live.length
            self.live.truncate(length)
            self._num_charged = min(self._num_charged, length)
            if is_change:
                self._transcript = self._transcript.cut(length)

    def hide(self, start: int, stop: int) -> None:
        """Lets later tokens not attend to a span. From here on the history is not what messages make of it."""
        with self._editing():
            self.live.hide(start, stop)
            self._transcript = self._transcript.fixed(self.live.length)

    def drop(self, start: int, stop: int) -> None:
        """Hides a span and frees its memory."""
        with self._editing():
            self.live.drop(start, stop)
            self._transcript = self._transcript.fixed(self.live.length)

    def forget(self, start: int, stop: int) -> None:
        """Takes tokens out as if they had never been there."""
        with self._editing():
            self.live.forget(start, stop)
            self._num_charged = min(self._num_charged, start)
            self._transcript = self._transcript.fixed(self.live.length)

    # -- computing --------------------------------------------------------------------------------------------------

    def charge(self) -> None:
        """Counts what is pending: it is computed now."""
        with self._editing():
            self._charge()

    @asynccontextmanager
    async def answering(self, *, takes_turn: bool = True) -> AsyncIterator[int]:
        """Something computes on the context: opens the answer to messages, and closes it again if that fails.

        Args:
            takes_turn: It counts as one of the run's generations, and waits while there are too many.

        Yields:
            How many tokens are computed first.
        """
        with self._editing():
            self._check_begun()
            before = self._transcript
            replaced = await self._open_answer()
        opened = self.live.length
        try:
            async with self._scope.turn() if takes_turn else nullcontext():
                with self._editing():
                    num_pending = self._charge()
                yield num_pending
        except BaseException:
            if self.live.length == opened and not (self.live.is_busy or self.live.is_released):
                self._undo(replaced, before)
            raise
        self.settle()

    @asynccontextmanager
    async def branch(self) -> AsyncIterator[LiveContext]:
        """A copy to compute behind, which is gone afterwards; what happens to the history meanwhile is no matter.

        Any number may be there at once. Where the history ends with messages, the copy has the opening of their answer.
        """
        async with self._branching:  # opening an answer may take a while: whoever looks too waits for that
            with self._editing(beside_growth=True):
                self._check_begun()
                edit = await self._opening()
                (branch,) = self.live.fork()
        try:
            num_kept = self.live.length
            if edit is not None:
                num_kept = edit.num_kept
                branch.truncate(num_kept)
                branch.append(edit.token_ids)
            self._scope.guard.count_prefill(branch.length - min(self._num_charged, num_kept))
            self._num_charged = num_kept
            yield branch
        finally:
            branch.release()

    @asynccontextmanager
    async def growing(self) -> AsyncIterator[LiveContext]:
        """Tokens are to be added that are computed first, on a copy that is given; nothing else changes it meanwhile.

        Where that fails the history is as it was.
        """
        async with self.answering(takes_turn=False):
            with self._editing():
                (branch,) = self.live.fork()
            self._is_growing = True
            try:
                yield branch
            finally:
                self._is_growing = False
                branch.release()

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Something is computed behind the history, which is the same again afterwards."""
        with self._editing():
            self._check_begun()
            before = self._transcript
            replaced = await self._open_answer()
        try:
            with self._editing():
                self._charge()
            yield
        finally:
            if not (self.live.is_busy or self.live.is_released):
                self._undo(replaced, before)

    def settle(self) -> None:
        """What was computed stays as it is."""
        self._num_charged = self.live.length
        self._transcript = self._transcript.fixed(self.live.length)

    # -- inside -----------------------------------------------------------------------------------------------------

    async def _open_answer(self) -> tuple[int, list[int]]:
        """Returns where the history changed, and what was there before."""
        length = self.live.length
        if not self._transcript.awaits_answer:
            return length, []
        writer, transcript, history = self._scope.writer, self._transcript, list(self.live.token_ids)
        num_kept = await self._rewrite(lambda: writer.open_answer(transcript, history), ())
        return num_kept, history[num_kept:]

    async def _opening(self) -> Edit | None:
        """What opens the answer to messages; None if there is nothing to open."""
        if not self._transcript.awaits_answer:
            return None
        writer, transcript, history = self._scope.writer, self._transcript, list(self.live.token_ids)
        edit = await self._made(lambda: writer.open_answer(transcript, history), transcript.messages)
        self._check_room(len(edit.token_ids) - (self.live.length - edit.num_kept))
        return edit

    def _undo(self, replaced: tuple[int, list[int]], before: Transcript) -> None:
        num_kept, ids = replaced
        self.live.truncate(num_kept)
        self.live.append(ids)
        self._num_charged = min(self._num_charged, num_kept)
        self._transcript = before

    def _append(self, ids: list[int]) -> None:
        self._check_room(len(ids))
        self.live.append(ids)
        self._transcript = self._transcript.fixed(self.live.length)

    async def _rewrite(self, make: Callable[[], Edit], messages: Sequence[Message]) -> int:
        """Changes the history, and returns how much of it stayed."""
        edit = await self._made(make, (*self._transcript.messages, *messages))
        self._check_room(len(edit.token_ids) - (self.live.length - edit.num_kept))
        if edit.num_kept < self.live.length:
            self.live.truncate(edit.num_kept)
        self.live.append(edit.token_ids)
        self._num_charged = min(self._num_charged, edit.num_kept)
        self._transcript = edit.transcript
        return edit.num_kept

    async def _made(self, make: Callable[[], Edit], messages: Sequence[Message]) -> Edit:
        """In a thread where there is much to write."""
        num_chars = sum(len(message["content"]) for message in messages)
        return await asyncio.to_thread(make) if num_chars > INLINE_CHARS else make()

    def _check_room(self, num_more: int) -> None:
        most = self._scope.engine.info.limit_tokens
        if self.live.length + num_more > most:
            raise invalid(f"the history would have {self.live.length + num_more} tokens, at most {most} are possible")

    def _charge(self) -> int:
        """Counts what is computed next, and returns how much that is."""
        num_pending = self.live.length - self._num_charged
        self._num_charged = self.live.length
        self._scope.guard.count_prefill(num_pending)
        return num_pending

    @contextmanager
    def _editing(self, *, beside_growth: bool = False) -> Iterator[None]:
        if self.live.is_released:
            raise invalid("the context is released")
        if self._is_editing or self.live.is_busy or (self._is_growing and not beside_growth):
            raise invalid("something else happens to the context at the moment: await or stop that first, or fork it")
        self._is_editing = True
        try:
            yield
        finally:
            self._is_editing = False

    def _check_begun(self) -> None:
        if self.live.length == 0:
            raise invalid("the context is empty: there is nothing to go on from")
