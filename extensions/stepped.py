"""A generation in which the caller decides on every token, or on every n-th."""

from __future__ import annotations

import itertools
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import msgspec

from engine import errors
from engine.reports import rebuild
from engine.request import Distribution as EngineDistribution
from engine.request import FinishReason as EngineFinish
from engine.request import TokenEvent
from engine.text.tokenizer import Tokenizer
from extensions.continuation import Continuation
from extensions.errors import GenerationClosed
from extensions.held_stream import HeldStream
from extensions.output import FinishReason, GenerateOptions, Usage
from extensions.stopping import StopStrings
from extensions.tracing import GenerationSpan


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a token is drawn from: after constraint, bias, penalties and bans, before temperature and truncation.

    Attributes:
        token_ids: Likeliest first; of the whole vocabulary in the order of ids.
        logprobs: Natural logarithms of their probabilities.
        omitted_mass: Probability of all other tokens together.
        entropy: Of the whole distribution, in nats.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    omitted_mass: float
    entropy: float

    @classmethod
    def from_engine(cls, packed: EngineDistribution) -> Distribution:
        """Unpacks what the engine sent."""
        token_ids, logprobs = array("i"), array("f")
        token_ids.frombytes(packed.token_ids)
        logprobs.frombytes(packed.logprobs)
        return cls(token_ids=token_ids, logprobs=logprobs, omitted_mass=packed.omitted_mass, entropy=packed.entropy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Where a stepped generation has come to.

    Attributes:
        token_id: What the sampler would take next; None at the end.
        finish_reason: Set at the end.
        distribution: What the token was drawn from, if asked for.
        text: Text of the tokens taken since the step before, whole characters only.
    """

    token_id: int | None = None
    finish_reason: FinishReason | None = None
    distribution: Distribution | None = None
    text: str = ""


class SteppedGeneration:
    """Steps of one continuation of a live context; made by `LiveContext.stepped`.

    async with await context.stepped(options) as generation:
        while (step := await generation.step()).finish_reason is None:
            generation.choose(step.token_id)

    Attributes:
        vocab_size: Ids that may be chosen are below.
    """

    def __init__(
        self,
        stream: HeldStream,
        prompt_ids: Sequence[int],
        options: GenerateOptions,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        add: Callable[[Sequence[int]], None],
        is_there: Callable[[], bool],
    ) -> None:
        self.vocab_size = vocab_size
        self._stream = stream
        self._continuation = Continuation(0, tokenizer, prompt_ids, options, StopStrings(options.stop))
        self._num_prompt = len(prompt_ids)
        self._num_cached = 0
        self._add = add
        self._is_there = is_there
        self._proposal: int | None = None
        self._choice: int | None = None
        self._banned: list[int] = []
        self._further: deque[tuple[int, EngineDistribution | None]] = deque()
        self._ends_by_text = bool(options.stop) or options.until is not None
        # Tokens that were fed when they were taken: those that the engine has not been told of, and those that it was
        # told of and has not confirmed.
        self._taken: list[int] = []
        self._told: list[int] = []
        self._end: Step | None = None
        self._kib_ms = 0
        self._is_closed = False
        self._span = GenerationSpan(len(prompt_ids))

    @property
    def usage(self) -> Usage:
        """Tokens taken up to now; final at the end."""
        num_tokens = self._continuation.num_tokens
        return Usage(
            num_prompt_tokens=self._num_prompt,
            num_completion_tokens=num_tokens,
            num_cached_tokens=self._num_cached,
            per_choice={0: num_tokens},
            kv_kib_ms=self._kib_ms,
        )

    async def step(self, n: int = 1) -> Step:
        """Takes the token chosen, or else the one proposed, draws `n` more, and pauses with the last of them.

        The others are taken as they come. After the end it returns the end again.

        Raises:
            ValueError: `n` is not positive.
            InvalidRequest: The token chosen is not allowed by the constraint; choose another.
            GenerationClosed: The generation was closed before its end.
            EngineStopped: The engine is gone.
            EngineError: The engine gave this generation up.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}")
        if self._end is not None:
            return self._end
        if self._is_closed:
            raise GenerationClosed("the generation was closed")
        try:
            if n == 1 and self._takes_known():
                return await self._take_known()
            text = ""
            if self._proposal is None:
                step = await self._wait()
                if step.finish_reason is not None or n == 1:
                    return step
                text, n = step.text, n - 1
            choice, self._choice = self._choice, None
            banned, self._banned = self._banned, []
            self._stream.advance(choice, n, banned, len(self._taken))
            self._told += self._taken
            self._taken = []
            self._further.clear()
            step = await self._wait()
        except errors.InvalidRequest:
            raise
        except BaseException:
            await self.aclose()
            raise
        return Step(
            token_id=step.token_id,
            finish_reason=step.finish_reason,
            distribution=step.distribution,
            text=text + step.text,
        )

    def known(self, most: int) -> list[Step]:
        """What follows if each token shown is taken: as many steps as are known, without their text, at most so many.

        None where the text of a token may end the generation, nor where something else was chosen or forbidden.
        """
        if self._ends_by_text or not self._takes_known():
            return []
        known = itertools.islice(self._further, most)
        return [Step(token_id=token_id, distribution=_unpacked(packed)) for token_id, packed in known]

    def take(self, count: int) -> None:
        """As many of the steps that are `known` were gone, each by taking the token shown before."""
        for _ in range(count):
            self._take_proposal()

    def choose(self, token_id: int) -> None:
        """Takes this token instead of the one proposed, when the generation goes on.

        Raises:
            ValueError: Nothing is proposed now, or there is no such token.
        """
        if self._proposal is None or self._end is not None:
            raise ValueError("no token is proposed now: step first")
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token ids must be between 0 and {self.vocab_size - 1}, got {token_id}")
        self._choice = token_id

    def ban(self, token_ids: Sequence[int]) -> None:
        """Keeps tokens from being drawn from now on; if the one proposed is among them, another is drawn for it.

        Raises:
            ValueError: There is no such token.
        """
        for token_id in token_ids:
            if not 0 <= token_id < self.vocab_size:
                raise ValueError(f"token ids must be between 0 and {self.vocab_size - 1}, got {token_id}")
        self._banned += token_ids

    async def stop(self) -> None:
        """Ends the generation; a token that was chosen and not yet taken is taken, one only proposed is not."""
        chosen = [] if self._choice is None else [self._choice]
        self._choice = None
        await self.aclose()
        if chosen:
            self._add(chosen)

    async def aclose(self) -> None:
        """Ends the engine's work. The history keeps what was taken. Idempotent."""
        self._is_closed = True
        self._span.end(self._continuation.num_tokens, self._num_cached)
        if self._taken:
            # The engine has computed them: told of them now, it need not do so again.
            self._stream.advance(self._taken[-1], 1, (), len(self._taken) - 1)
            self._told += self._taken
            self._taken = []
        self._stream.further = self._told
        await self._stream.aclose()

    async def __aenter__(self) -> SteppedGeneration:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _takes_known(self) -> bool:
        """True if the caller takes what is proposed and the next proposal is known."""
        takes_proposal = not self._banned and self._choice in (None, self._proposal)
        return bool(self._further) and takes_proposal and self._is_there()

    async def _take_known(self) -> Step:
        """Takes what is proposed, and proposes what the engine told with it; the engine hears of it later."""
        step = self._take_proposal()
        if self._end is not None:
            await self.aclose()
        return step

    def _take_proposal(self) -> Step:
        assert self._proposal is not None
        self._choice = None
        self._taken.append(self._proposal)
        text = self._feed(TokenEvent(request_id="", index=0, token_ids=[self._proposal]))
        if self._end is not None:
            return Step(finish_reason=self._end.finish_reason, text=text)
        self._proposal, packed = self._further.popleft()
        return Step(token_id=self._proposal, distribution=_unpacked(packed), text=text)

    async def _wait(self) -> Step:
        """Reads until something is proposed, or the end."""
        text = ""
        while True:
            event = await self._stream.__anext__()
            if event.error is not None:
                raise rebuild(event.error)
            if event.finish_reason is EngineFinish.ERROR:
                raise errors.EngineError("the request failed")
            text += self._take(event)
            if self._end is not None:
                await self.aclose()
                self._end = Step(finish_reason=self._end.finish_reason)
                return Step(finish_reason=self._end.finish_reason, text=text)
            if event.proposal is not None:
                self._proposal = event.proposal
                self._further.extend(event.further)
                return Step(token_id=event.proposal, distribution=_unpacked(event.distribution), text=text)

    def _take(self, event: TokenEvent) -> str:
        """Feeds tokens that were taken; returns their text."""
        self._num_cached = event.num_cached_tokens or self._num_cached
        self._kib_ms = event.kv_kib_ms
        if self._told and event.token_ids:
            num_told = min(len(self._told), len(event.token_ids))
            del self._told[:num_told]
            event = msgspec.structs.replace(event, token_ids=event.token_ids[num_told:])
        return self._feed(event)

    def _feed(self, event: TokenEvent) -> str:
        if not event.token_ids and event.finish_reason is None:
            return ""
        step = self._continuation.feed(event)
        if step is None:
            return ""
        if step.finish_reason is not None:
            self._end = Step(finish_reason=step.finish_reason)
        return step.text


def _unpacked(packed: EngineDistribution | None) -> Distribution | None:
    return None if packed is None else Distribution.from_engine(packed)
