"""A running generation: steps of text, until every continuation has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from engine import errors
from engine.client import EventStream
from engine.reports import rebuild
from engine.request import FinishReason as EngineFinish
from engine.request import Probes, TokenEvent
from engine.text.tokenizer import Tokenizer
from extensions.continuation import Continuation
from extensions.errors import GenerationClosed
from extensions.output import GenerateOptions, GenerationStep, Usage
from extensions.stopping import StopStrings
from extensions.token_text import describe_prompt
from extensions.tracing import GenerationSpan


class _NotTaken(Exception):
    """Brings the reader a step that was made without it."""

    def __init__(self, event: TokenEvent, step: GenerationStep) -> None:
        super().__init__("a step is the reader's")
        self.event = event
        self.step = step


class Generation:
    """Async iterator of steps; made by `Context.generate`.

    The engine's work ends, and its pages are free, as soon as the last continuation has ended, an error is raised,
    the reader is cancelled, or the generation is closed. Text is decoded when somebody asks for the next step; a slow
    reader slows nobody else.

    Attributes:
        probes: What a device program noted down so far, an entry for each token that the engine has drawn.
        attention: What was asked for of it; see `TokenEvent`.

        async with await context.generate(options) as generation:
            async for step in generation:
                print(step.text, end="")
    """

    def __init__(
        self, stream: EventStream, prompt_ids: Sequence[int], options: GenerateOptions, tokenizer: Tokenizer
    ) -> None:
        self._stream = stream
        self._prompt_ids = prompt_ids
        self._options = options
        self._tokenizer = tokenizer
        stops = StopStrings(options.stop)
        self._continuations = [Continuation(index, tokenizer, prompt_ids, options, stops) for index in range(options.n)]
        self._num_running = options.n
        self._num_cached_tokens: int | None = None
        self._kib_ms = [0] * options.n
        self._num_drafted = self._num_accepted = 0
        self._has_prompt_tokens = options.prompt_logprobs is not None
        self._closing: asyncio.Future[None] | None = None
        self._span = GenerationSpan(len(prompt_ids), options.n)
        self.probes: list[Probes] = []
        self.attention: list[bytes] = []

    @property
    def usage(self) -> Usage:
        """Tokens counted up to now; final once iteration has ended."""
        counts = [one.num_tokens for one in self._continuations]
        return Usage(
            num_prompt_tokens=len(self._prompt_ids),
            num_completion_tokens=sum(counts),
            num_cached_tokens=self._num_cached_tokens or 0,
            per_choice=dict(enumerate(counts)),
            kv_kib_ms=sum(self._kib_ms),
            num_drafted_tokens=self._num_drafted,
            num_accepted_tokens=self._num_accepted,
        )

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> GenerationStep:
        """Waits for the next step.

        Raises:
            EngineStopped: The engine is gone; what was returned before stays valid.
            GenerationClosed: Another task closed the generation meanwhile.
            EngineError: The engine gave this request up.
        """
        if self._closing is not None:
            raise StopAsyncIteration
        try:
            while True:
                step: GenerationStep | None
                try:
                    event = await self._stream.__anext__()
                    self._span.note_token()
                    was_done = self._continuations[event.index].is_done
                    step = self._feed(event)
                except _NotTaken as made:
                    event, step, was_done = made.event, made.step, False
                if self._continuations[event.index].is_done and not was_done:
                    await self._end_sequence(event)
                if step is not None:
                    return step
        except StopAsyncIteration:
            error = self._early_end()
            await self.aclose()
            raise error from None
        except BaseException:
            await self.aclose()
            raise

    def divert(self, take: Callable[[GenerationStep], bool]) -> None:
        """Offers `take` the steps that come while the reader waits; those that it takes the reader never sees.

        It spares waking the reader's task for every token. The first step of a continuation and its last are the
        reader's, and those for which `take` returns false; what it raises is raised to the reader.
        """

        def take_event(event: TokenEvent) -> None:
            continuation = self._continuations[event.index]
            step = None if continuation.is_done else self._feed(event)
            if step is not None and (continuation.is_done or not take(step)):
                raise _NotTaken(event, step)

        self._stream.divert(take_event)

    async def aclose(self) -> None:
        """Ends the engine's work for this generation. Idempotent; completes even if the caller is cancelled."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._stream.aclose())
            self._span.end(sum(one.num_tokens for one in self._continuations), self._num_cached_tokens or 0)
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _feed(self, event: TokenEvent) -> GenerationStep | None:
        self._num_drafted += event.num_drafted
        self._num_accepted += event.num_accepted
        self._kib_ms[event.index] = event.kv_kib_ms
        if event.finish_reason is EngineFinish.ERROR:
            raise errors.EngineError("the request failed") if event.error is None else rebuild(event.error)
        if event.probes:
            self.probes += event.probes
        if event.attention:
            self.attention += event.attention
        step = self._continuations[event.index].feed(event)
        is_about_prompt = event.num_cached_tokens is not None or event.prompt_logprobs is not None
        return self._with_prompt(event, step) if is_about_prompt else step

    def _early_end(self) -> Exception:
        if self._closing is not None:
            return GenerationClosed("the generation was closed while a step was awaited")
        return errors.EngineStopped("the engine ended a request before its last token")

    async def _end_sequence(self, event: TokenEvent) -> None:
        self._num_running -= 1
        if event.finish_reason is None:
            await self._stream.stop_sequence(event.index)
        if self._num_running == 0:
            await self.aclose()

    def _with_prompt(self, event: TokenEvent, step: GenerationStep | None) -> GenerationStep | None:
        if self._num_cached_tokens is None:
            self._num_cached_tokens = event.num_cached_tokens
        if not self._has_prompt_tokens or event.prompt_logprobs is None:
            return step
        self._has_prompt_tokens = False
        prompt_tokens = describe_prompt(
            self._tokenizer,
            self._prompt_ids,
            event.prompt_logprobs,
            skip_special=self._options.skip_special_tokens,
        )
        return msgspec.structs.replace(step or GenerationStep(index=event.index), prompt_tokens=prompt_tokens)
