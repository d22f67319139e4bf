"""A script's handle on a token history; see `Context` in the stubs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from extensions.programs.faults import invalid
from extensions.programs.generating import Completion, GenerateFields, run_generation
from extensions.programs.options import token_ids
from extensions.programs.scope import INLINE_CHARS, RunScope
from extensions.programs.transcript import Edit, Message, Transcript, read_messages

if TYPE_CHECKING:
    from extensions.live_context import LiveContext, Mark

Content = str | Sequence[int] | Sequence[Mapping[str, Any]]

MAX_FORKS = 4096
"""Copies that one call makes at most."""


class ContextInfo(NamedTuple):
    """See `ContextInfo` in the stubs."""

    length: int
    pending: int
    bytes: int
    shared_bytes: int
    residency: Literal["device", "tokens"]
    recomputable: bool


class ScriptMark:
    """A place in a history, to come back to.

    Attributes:
        scope: The run that it belongs to.
        mark: The place.
        transcript: What was known of the history there.
    """

    def __init__(self, scope: RunScope, mark: Mark, transcript: Transcript) -> None:
        self.scope = scope
        self.mark = mark
        self.transcript = transcript


class ScriptContext:
    """One context of a run. One thing at a time happens to it; whatever comes meanwhile is refused."""

    def __init__(
        self, scope: RunScope, live: LiveContext, transcript: Transcript | None = None, num_charged: int = 0
    ) -> None:
        self._scope = scope
        self._live = live
        self._transcript = transcript or Transcript()
        self._num_charged = num_charged
        self._is_editing = False
        scope.keep(self)

    # -- what a script may call -------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Tokens of the history."""
        return self._live.length

    async def append(self, content: Content) -> None:
        """Adds messages, text or token ids."""
        with self._editing():
            if isinstance(content, str):
                await self._append_text(content)
            elif _are_messages(content):
                await self._append_messages(read_messages(content))
            else:
                self._append_ids(token_ids(content, "content"))

    async def prefill(self) -> None:
        """Computes what is pending."""
        with self._editing():
            self._charge()
        self._scope.planned()
        await self._live.prefill()

    async def fork(self, n: int | None = None) -> ScriptContext | list[ScriptContext]:
        """One copy, or a list of n."""
        count = 1 if n is None else n
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_FORKS:
            raise invalid(f"n must be a whole number from 1 to {MAX_FORKS}")
        with self._editing():
            self._scope.guard.open_contexts(count)
            self._charge()
            lives = self._live.fork(count)
            copies = [ScriptContext(self._scope, live, self._transcript, self._num_charged) for live in lives]
        return copies[0] if n is None else copies

    async def mark(self) -> ScriptMark:
        """Remembers the end of the history."""
        with self._editing():
            return ScriptMark(self._scope, self._live.mark(), self._transcript)

    async def rewind(self, mark: ScriptMark) -> None:
        """Goes back to a mark."""
        if not isinstance(mark, ScriptMark) or mark.scope is not self._scope:
            raise invalid("mark must be what ctx.mark() returned")
        with self._editing():
            self._live.rewind(mark.mark)
            self._transcript = mark.transcript
            self._num_charged = min(self._num_charged, self._live.length)

    async def truncate(self, length: int) -> None:
        """Keeps the first tokens."""
        _check_integers(length=length)
        with self._editing():
            is_change = length != self._live.length
            self._live.truncate(length)
            self._num_charged = min(self._num_charged, length)
            if is_change:
                self._transcript = self._transcript.cut(length)

    async def forget(self, start: int, stop: int) -> None:
        """Takes tokens out as if they had never been there."""
        _check_integers(start=start, stop=stop)
        with self._editing():
            self._live.forget(start, stop)
            self._num_charged = min(self._num_charged, start)
            self._transcript = self._transcript.fixed(self._live.length)

    async def info(self) -> ContextInfo:
        """What it is and costs."""
        info = await self._live.info()
        page_bytes = self._scope.engine.info.page_bytes
        return ContextInfo(
            length=self._live.length,
            pending=max(self._live.length - info.num_computed, 0),
            bytes=info.num_pages * page_bytes,
            shared_bytes=info.num_shared_pages * page_bytes,
            residency=info.residency,
            recomputable=info.recomputable,
        )

    async def release(self) -> None:
        """Frees it."""
        self.let_go()

    async def generate(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Any = None,
        logprobs: int | None = None,
        emit: bool = False,
    ) -> Completion:
        """Generates until a stop."""
        fields: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "repetition_penalty": repetition_penalty,
            "logit_bias": logit_bias,
            "min_tokens": min_tokens,
            "seed": seed,
            "stop": stop,
            "stop_token_ids": stop_token_ids,
            "template_stops": template_stops,
            "constrain": constrain,
        }
        asked = GenerateFields.read(fields, self._scope, logprobs=logprobs, emit=emit)
        async with self._answering() as num_pending:
            return await run_generation(self._scope, self._live, asked, num_pending)

    # -- what the run does ------------------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Frees it. Idempotent."""
        self._live.release()
        self._scope.drop(self)

    async def begin(self, content: Content) -> None:
        """The first of its history."""
        if isinstance(content, str):
            with self._editing():
                self._append_ids(await self._scope.encode(content, "content", add_special=True))
        elif len(content):
            await self.append(content)

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[int]:
        """Something computes on the context: opens the answer to messages, and closes it again if that fails.

        Yields:
            How many tokens are computed first.
        """
        with self._editing():
            before = self._transcript
            replaced = await self._open_answer()
        opened = self._live.length
        try:
            async with self._scope.generating:
                with self._editing():
                    num_pending = self._charge()
                yield num_pending
        except BaseException:
            if self._live.length == opened and not (self._live.is_busy or self._live.is_released):
                self._undo(replaced, before)
            raise
        self._num_charged = self._live.length
        self._transcript = self._transcript.fixed(self._live.length)

    async def _open_answer(self) -> tuple[int, list[int]]:
        """Returns where the history changed, and what was there before."""
        length = self._live.length
        if not self._transcript.awaits_answer:
            return length, []
        writer, history = self._scope.writer, list(self._live.token_ids)
        num_kept = await self._rewrite(lambda: writer.open_answer(self._transcript, history), ())
        return num_kept, history[num_kept:]

    def _undo(self, replaced: tuple[int, list[int]], before: Transcript) -> None:
        num_kept, ids = replaced
        self._live.truncate(num_kept)
        self._live.append(ids)
        self._num_charged = min(self._num_charged, num_kept)
        self._transcript = before

    async def _append_text(self, text: str) -> None:
        """Text behind messages is the beginning of the answer to them."""
        ids = await self._scope.encode(text, "content")
        await self._open_answer()
        self._append_ids(ids)

    def _append_ids(self, ids: list[int]) -> None:
        self._check_room(len(ids))
        self._live.append(ids)
        self._transcript = self._transcript.fixed(self._live.length)

    async def _append_messages(self, messages: Sequence[Message]) -> None:
        writer, history = self._scope.writer, self._live.token_ids
        await self._rewrite(lambda: writer.append(self._transcript, history, messages), messages)

    async def _rewrite(self, make: Callable[[], Edit], messages: Sequence[Message]) -> int:
        """Changes the history, and returns how much of it stayed."""
        num_chars = sum(len(message["content"]) for message in (*self._transcript.messages, *messages))
        edit: Edit = await asyncio.to_thread(make) if num_chars > INLINE_CHARS else make()
        self._check_room(len(edit.token_ids) - (self._live.length - edit.num_kept))
        if edit.num_kept < self._live.length:
            self._live.truncate(edit.num_kept)
        self._live.append(edit.token_ids)
        self._num_charged = min(self._num_charged, edit.num_kept)
        self._transcript = edit.transcript
        return edit.num_kept

    def _check_room(self, num_more: int) -> None:
        most = self._scope.engine.info.limit_tokens
        if self._live.length + num_more > most:
            raise invalid(f"the history would have {self._live.length + num_more} tokens, at most {most} are possible")

    def _charge(self) -> int:
        """Counts what is computed next, and returns how much that is."""
        num_pending = self._live.length - self._num_charged
        self._num_charged = self._live.length
        self._scope.guard.count_prefill(num_pending)
        return num_pending

    @contextmanager
    def _editing(self) -> Iterator[None]:
        if self._live.is_released:
            raise invalid("the context is released")
        if self._is_editing or self._live.is_busy:
            raise invalid("something else happens to the context at the moment: fork it, or await that first")
        self._is_editing = True
        try:
            yield
        finally:
            self._is_editing = False


def _are_messages(content: object) -> bool:
    if isinstance(content, Mapping | bytes) or not isinstance(content, Sequence):
        raise invalid("content must be text, a list of token ids or a list of messages")
    return bool(content) and isinstance(content[0], Mapping)


def _check_integers(**values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"{name} must be a whole number")
