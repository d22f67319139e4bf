"""All the engine's work for one HTTP request: one generation a prompt, their steps merged, measured and counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.errors import EngineStopped, InvalidRequest
from extensions.generation import Generation
from extensions.live_context import LiveContext
from extensions.output import GenerateOptions, GenerationStep, TokenText, Usage
from extensions.runtime import Runtime
from gateway.telemetry import Metrics
from gateway.tenancy.payer import Payer
from gateway.translate.usage import total_usage

MAX_BUFFERED_STEPS = 16
"""Steps of one prompt that may wait for a reader when a request has several prompts."""


@dataclass(frozen=True, slots=True)
class Work:
    """One prompt and how to continue it.

    Attributes:
        prompt_ids: The prompt.
        options: How.
        param: The wire's name of the prompt.
        held: A context that has the prompt, to go on from; released with the work.
        keep: Awaited in place of that once the work came to its end: who gave it looks after the context then.
    """

    prompt_ids: Sequence[int]
    options: GenerateOptions
    param: str
    held: LiveContext | None = None
    keep: Callable[[], Awaitable[None]] | None = None


@dataclass(slots=True)
class Choice:
    """One whole continuation.

    Attributes:
        index: Its place on the wire.
        texts: Its parts as they came.
        tokens: With log-probabilities, if asked for.
        token_ids: All the engine produced, the stop token included.
        finish_reason: `stop` or `length`.
        stop_reason: The stop string or stop token id that ended it.
        prompt_tokens: With log-probabilities, if asked for.
    """

    index: int
    texts: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    prompt_tokens: tuple[TokenText, ...] | None = None

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(self.texts)

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of its tokens; what `best_of` ranks by."""
        return sum(token.logprob or 0.0 for token in self.tokens) / max(len(self.tokens), 1)


class Generations:
    """The running work of one request. Iterate once; close it however that ends.

    Choices are numbered prompt by prompt: `prompt * n + index`.
    """

    def __init__(self, parts: list[Generation], per_prompt: int, watch: Stopwatch, payer: Payer) -> None:
        self._parts = parts
        self._payer = payer
        self._per_prompt = per_prompt
        self._watch = watch
        self._readers: list[asyncio.Task[None]] = []
        self._held: list[Work] = []
        self._num_open = len(parts) * per_prompt
        self._steps: AsyncIterator[GenerationStep] = parts[0] if len(parts) == 1 else self._merged()

    @classmethod
    async def start(
        cls, runtime: Runtime, work: Sequence[Work], *, payer: Payer, model: str, metrics: Metrics
    ) -> Generations:
        """Hands all prompts to the engine; either all are accepted or none goes on.

        Args:
            runtime: The door to the model.
            work: The prompts.
            payer: Who pays; told at the end what was used.
            model: The model's name, for whoever pays.
            metrics: Told of what happens.

        Raises:
            InvalidRequest: One can never be served; `param` is its name, or that of the field at fault.
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there.
        """
        parts: list[Generation] = []
        try:
            for part in work:
                account, salt = payer.account, payer.salt
                context = part.held or runtime.context(part.prompt_ids, account=account, salt=salt)
                parts.append(await context.generate(part.options))
        except BaseException as error:
            await asyncio.gather(*(part.aclose() for part in parts))
            for one in work:
                if one.held is not None:
                    one.held.release()
            if isinstance(error, InvalidRequest) and error.param == "prompt_ids":
                error.param = work[len(parts)].param
            raise
        num_prompt_tokens = sum(len(part.prompt_ids) for part in work)
        num_choices = sum(part.options.n for part in work)
        payer.begin(model)
        generations = cls(parts, work[0].options.n, Stopwatch(metrics, num_prompt_tokens, num_choices), payer)
        generations._held = [part for part in work if part.held is not None]
        return generations

    @property
    def usage(self) -> Usage:
        """Tokens so far, all prompts together."""
        return self._parts[0].usage if len(self._parts) == 1 else total_usage(part.usage for part in self._parts)

    def __aiter__(self) -> Generations:
        return self

    async def __anext__(self) -> GenerationStep:
        """Waits for the next step; its `index` is that of the choice.

        Raises:
            EngineStopped: The engine ended first.
        """
        try:
            step = await self._steps.__anext__()
            self._watch.note(step)
            if step.finish_reason == "abort":
                raise EngineStopped("the engine gave the request up")
            if step.finish_reason is not None:
                self._num_open -= 1
        except StopAsyncIteration:
            await self._keep()
            raise
        except Exception:
            self._watch.abandon("error")
            raise
        return step

    def divert(self, take: Callable[[GenerationStep], bool]) -> None:
        """Offers `take` the steps between the first and the last that come while the reader waits.

        Those that it takes, returning true, the reader never sees; see `Generation.divert`. With several prompts all
        are the reader's.
        """
        if len(self._parts) == 1:
            self._parts[0].divert(lambda step: take(step) and self._noted(step))

    async def aclose(self) -> None:
        """Ends whatever still runs; pages are free within one step. Idempotent."""
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await asyncio.gather(*(part.aclose() for part in self._parts))
        held, self._held = self._held, []
        for part in held:
            assert part.held is not None
            part.held.release()
        self._watch.abandon("abort")
        self._payer.end(self.usage)

    async def _keep(self) -> None:
        """All has come to its end: what is to be kept of it is kept, so that its reader can tell."""
        if self._num_open or not any(part.keep for part in self._held):
            return
        await asyncio.gather(*(part.aclose() for part in self._parts))
        held, self._held = self._held, [part for part in self._held if part.keep is None]
        for part in held:
            if part.keep is not None:
                await part.keep()

    async def collect(self) -> list[Choice]:
        """Waits for all and returns the choices in order. Closes itself.

        Raises:
            EngineStopped: The engine ended first.
        """
        choices = [Choice(index) for index in range(len(self._parts) * self._per_prompt)]

        def add(step: GenerationStep) -> bool:
            _add(choices[step.index], step)
            return True

        self.divert(add)
        try:
            async for step in self:
                _add(choices[step.index], step)
        finally:
            await self.aclose()
        for start in range(0, len(choices), self._per_prompt):
            _share_prompt(choices[start : start + self._per_prompt])
        return choices

    def _noted(self, step: GenerationStep) -> bool:
        self._watch.note(step)
        return True

    async def _merged(self) -> AsyncIterator[GenerationStep]:
        queue: asyncio.Queue[GenerationStep | Exception | None] = asyncio.Queue(MAX_BUFFERED_STEPS)
        self._readers = [
            asyncio.create_task(self._read(part, number * self._per_prompt, queue))
            for number, part in enumerate(self._parts)
        ]
        num_open = len(self._parts)
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item

    async def _read(
        self, part: Generation, offset: int, queue: asyncio.Queue[GenerationStep | Exception | None]
    ) -> None:
        try:
            async for step in part:
                await queue.put(msgspec.structs.replace(step, index=offset + step.index))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)


def _share_prompt(choices: Sequence[Choice]) -> None:
    """The engine describes a prompt once, with whichever continuation came first."""
    described = next((one.prompt_tokens for one in choices if one.prompt_tokens is not None), None)
    for choice in choices:
        choice.prompt_tokens = described


def _add(choice: Choice, step: GenerationStep) -> None:
    choice.texts.append(step.text)
    choice.tokens += step.tokens
    choice.token_ids += step.token_ids
    if step.finish_reason is not None:
        choice.finish_reason, choice.stop_reason = step.finish_reason, step.stop_reason
    if step.prompt_tokens is not None:
        choice.prompt_tokens = step.prompt_tokens


@dataclass(slots=True)
class _Timing:
    """Of one continuation that has not ended: when its tokens came, and how many."""

    first_s: float | None = None
    last_s: float = 0.0
    num_tokens: int = 0


class Stopwatch:
    """Measures one request's generations.

    Args:
        metrics: Told of what is measured.
        num_prompt_tokens: Of all prompts.
        num_choices: Continuations of all prompts.
    """

    def __init__(self, metrics: Metrics, num_prompt_tokens: int, num_choices: int) -> None:
        self._metrics = metrics
        self._num_prompt_tokens = num_prompt_tokens
        self._start_s = time.perf_counter()
        self._open = {index: _Timing() for index in range(num_choices)}
        self._has_first = False

    def note(self, step: GenerationStep) -> None:
        """Takes the next step of a continuation."""
        timing = self._open[step.index]
        timing.last_s = time.perf_counter()
        timing.num_tokens += len(step.token_ids)
        if timing.first_s is None:
            timing.first_s = timing.last_s
            if not self._has_first:
                self._has_first = True
                self._metrics.observe_first_token(timing.last_s - self._start_s)
        if step.finish_reason is not None:
            self._end(step.index, step.finish_reason)
            if not self._open:
                self._metrics.observe_generation(self._num_prompt_tokens, timing.last_s - self._start_s)

    def abandon(self, reason: str) -> None:
        """Nothing more will come; what has not ended counts with this reason."""
        for index in list(self._open):
            self._end(index, reason)

    def _end(self, index: int, reason: str) -> None:
        timing = self._open.pop(index)
        decode_s = 0.0 if timing.first_s is None else timing.last_s - timing.first_s
        self._metrics.observe_end(reason, timing.num_tokens, decode_s)
