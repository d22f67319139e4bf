"""A token history whose KV is kept between generations: appended to, forked, rewound, continued.

What the engine holds follows this object by unanswered commands, so that everything but computing returns at once. A
new engine process is told the history again when something is computed next.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engine.contexts.commands import ContextInfo
from engine.errors import InvalidRequest, SequenceNotFound
from engine.forward.shapes import Shape
from engine.request import AttentionSpec, GenerateRequest, LanePass, Readout, SiteChange, TokenLogprob
from engine.sampling.params import SamplingParams
from extensions.generation import Generation
from extensions.held_context import HeldContext
from extensions.held_stream import HeldStream
from extensions.history import Mark
from extensions.leases import MAX_TTL_S, hand_over
from extensions.output import GenerateOptions
from extensions.scoring import gather_all, read_logprobs, read_rows
from extensions.stepped import Distribution, SteppedGeneration

__all__ = ["LiveContext", "Mark"]


class LookedAt(NamedTuple):
    """What is found behind rows: their distributions, and what they attend to if that is asked; see `TokenEvent`."""

    distributions: list[Distribution]
    attention: list[bytes]


class LiveContext(HeldContext):
    """One token history; made by `Runtime.open_context` and by `fork`.

    Only one thing computes on a context at a time: everything that would change it meanwhile is refused. A generation
    that fails leaves it as it was.
    """

    def fork(self, count: int = 1) -> list[LiveContext]:
        """Copies of the context: they share all that is computed, and what is not will be computed once.

        Raises:
            ValueError: The context is released or busy, or `count` is not positive.
        """
        self._check()
        if count < 1:
            raise ValueError(f"a fork needs at least one copy, got {count}")
        links = self._link.fork(self.token_ids, self._edits, count)
        return [LiveContext(self._engine, self._text, self.token_ids, link=link, edits=self._edits) for link in links]

    async def generate(
        self, options: GenerateOptions, *, beside: Sequence[LiveContext] = (), passes: Sequence[LanePass] = ()
    ) -> Generation:
        """Continues the history; when the generation has ended, however it does, the history has its tokens.

        Args:
            options: How.
            beside: More contexts of this engine, whose logits the program of `options` reads in the same steps; each
                gets every token too.
            passes: For each of them the rows that are the program's lanes, instead of their ends.

        Use the result as a context manager:

            async with await context.generate(options) as generation:
                async for step in generation:
                    ...

        Raises:
            ValueError: A context is released, busy or empty, or `n` is not 1.
            InvalidRequest: It can never be served (`ContextTooLong` if it does not fit).
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there.
        """
        for context in (self, *beside):
            context._check_options(options)
        stream = await self._submit(options, beside=beside, passes=passes)
        stream.on_wanted = options.on_wanted
        generation = Generation(stream, tuple(self.token_ids), options, self._text.tokenizer)

        def take_in() -> None:
            for context in (self, *beside):
                context._take_in(stream, generation.usage.num_completion_tokens)

        stream.on_close = take_in
        return generation

    async def stepped(self, options: GenerateOptions, *, top: int = 64, need_mass: float = 0.0) -> SteppedGeneration:
        """Continues the history step by step, each token taken only when the caller goes on.

        Args:
            options: How tokens are drawn; without log-probabilities, for distributions take their place.
            top: Likeliest tokens to give of each distribution; 0 for none, -1 for the whole vocabulary.
            need_mass: As many more as make up this probability.

        Raises:
            ValueError: The context is released, busy or empty, or an argument is out of range.
            InvalidRequest: It can never be served (`ContextTooLong` if it does not fit).
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there.
        """
        self._check_options(options)
        if options.sampling.logprobs is not None or options.prompt_logprobs is not None:
            raise ValueError("a stepped generation gives distributions instead of log-probabilities")
        if top < -1 or not 0.0 <= need_mass <= 1.0:
            raise ValueError("top must be -1 or more, and need_mass between 0 and 1")
        readout = Readout(top, need_mass) if top or need_mass else None
        stream = await self._submit(options, stepped=True, readout=readout)
        generation = SteppedGeneration(
            stream,
            tuple(self.token_ids),
            options,
            self._text.tokenizer,
            vocab_size=self._vocab_size,
            add=self.append,
            is_there=lambda: not self.is_released,
        )
        stream.on_close = lambda: self._take_in(stream, generation.usage.num_completion_tokens)
        return generation

    async def next(self, *, top: int = 256, need_mass: float = 0.0) -> Distribution:
        """The distribution of the next token; nothing is drawn or added.

        Raises:
            ValueError: The context is released, busy or empty, or an argument is out of range.
            InvalidRequest: There is no room for a token.
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there, or it ended meanwhile.
            EngineError: The engine gave the request up.
        """
        if top == 0:
            raise ValueError("top must be -1 or at least 1")
        options = GenerateOptions(sampling=SamplingParams(max_tokens=1, temperature=0.0))
        async with await self.stepped(options, top=top, need_mass=need_mass) as generation:
            distribution = (await generation.step()).distribution
        assert distribution is not None
        return distribution

    async def score(self, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of each token of some continuations; see `examine`."""
        return [[one.logprob for one in found] for found in await self.examine(continuations)]

    async def examine(self, continuations: Sequence[Sequence[int]], top: int = 0) -> list[list[TokenLogprob]]:
        """What the model thinks of each token of some continuations; the context does not change.

        All are computed together, and what they share is computed once.

        Args:
            continuations: Token ids of each.
            top: Likeliest tokens to report for each place.

        Raises:
            ValueError: The context is released, busy or empty, or an id is outside of the vocabulary.
            InvalidRequest: One does not fit.
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there, or it ended meanwhile.
        """
        self._check()
        if not self.token_ids:
            raise ValueError("the context is empty")
        for continuation in continuations:
            self._check_ids(continuation)
        branches = self.fork(len(continuations)) if continuations else []
        try:
            for branch, continuation in zip(branches, continuations, strict=True):
                branch.append(continuation)
            return await gather_all([branch._examine_from(self.length, top) for branch in branches])
        finally:
            for branch in branches:
                branch.release()

    async def _examine_from(self, start: int, top: int) -> list[TokenLogprob]:
        """Reports of the tokens from a position on."""
        if start == self.length:
            return []
        options = GenerateOptions(sampling=SamplingParams(max_tokens=0), prompt_logprobs=top)
        stream = await self._submit(options, logprobs_start=start)
        stream.on_close = lambda: self._take_in(stream, 0)
        return await read_logprobs(stream)

    async def look(
        self,
        token_ids: Sequence[int],
        rows: Sequence[int],
        *,
        positions: Sequence[int] | None = None,
        sights: Sequence[bytes] = (),
        readout: Readout,
    ) -> list[Distribution]:
        """Distributions behind some of the tokens that could follow; the context does not change.

        Args:
            token_ids: What follows the history.
            rows: Which of them, rising.
            positions: Their rotary positions; None for those that follow the history's.
            sights: For each of them the slots that it sees; see `engine.forward.shapes`.
            readout: What is wanted of each distribution.

        Raises:
            ValueError: The context is released or busy, or an id is outside of the vocabulary.
            InvalidRequest: A row, position or sight cannot be, or the tokens do not fit.
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there, or it ended meanwhile.
        """
        (branch,) = self.fork()
        try:
            looked = await branch.look_once(token_ids, rows, positions=positions, sights=sights, readout=readout)
            return looked.distributions
        finally:
            branch.release()

    async def look_once(
        self,
        token_ids: Sequence[int],
        rows: Sequence[int],
        *,
        positions: Sequence[int] | None = None,
        sights: Sequence[bytes] = (),
        changes: Sequence[SiteChange] = (),
        readout: Readout,
        attention: AttentionSpec | None = None,
    ) -> LookedAt:
        """The same on a context that nobody needs afterwards: it is to be released then. See `look`.

        With `attention` it tells too what those rows attend to. `changes` are what adapters do to them; with positions.
        """
        shape = self.shape_of(token_ids, positions, sights)
        wanted = LanePass([self.length + row for row in rows], shape, changes=list(changes))
        self.append(token_ids)
        options = GenerateOptions(sampling=SamplingParams(max_tokens=0), attention=attention)
        stream = await self._submit(options, readout=readout, passes=[wanted])
        stream.on_close = lambda: self._take_in(stream, 0)
        found, attended = await read_rows(stream)
        return LookedAt([Distribution.from_engine(one) for one in found], attended)

    def shape_of(
        self, token_ids: Sequence[int], positions: Sequence[int] | None, sights: Sequence[bytes]
    ) -> Shape | None:
        """The shape of tokens that would follow; None if they are like any others.

        Raises:
            ValueError: The context is released or busy, or an id is outside of the vocabulary.
            InvalidRequest: The history has edits.
        """
        self._check()
        self._check_ids(token_ids)
        if positions is None and not sights:
            return None
        if self._edits:
            raise InvalidRequest("rows with positions or a mask of their own need a history without edits", "mask")
        plain = range(self.length, self.length + len(token_ids))
        return Shape(self.length, list(plain if positions is None else positions), list(sights))

    async def prefill(self) -> None:
        """Computes what is pending.

        Raises:
            ValueError: The context is released or busy.
            InvalidRequest: It does not fit.
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there, or it ended meanwhile.
        """
        self._check()
        if not self.token_ids:
            return
        options = GenerateOptions(sampling=SamplingParams(max_tokens=0))
        async with await self.generate(options) as generation:
            async for _ in generation:
                pass

    async def hand_over(self, *, ttl_s: float, max_bytes: int, value: float, max_kept: int) -> ContextInfo:
        """Computes what is pending and leaves the context to the engine; see `extensions.leases.hand_over`.

        The context is released with that.

        Raises:
            ValueError: The context is released or busy, or an argument is out of range.
            InvalidRequest: It does not fit.
            QueueFull: Too many requests wait already.
            EngineStopped: No engine is there, or it ended meanwhile.
        """
        if not 0.0 < ttl_s <= MAX_TTL_S or max_bytes < 1 or not 0.0 <= value <= 1.0:
            raise ValueError("ttl_s and max_bytes must be positive, and value between 0 and 1")
        # Computes the last token, and has all whole pages known to the prefix cache.
        await self.prefill()
        self._check()
        engine, link = self._engine, self._link
        self._link.sync(self.token_ids, self._edits)
        try:
            return await hand_over(engine, link, ttl_s=ttl_s, max_bytes=max_bytes, value=value, max_kept=max_kept)
        finally:
            self.release()

    async def _submit(
        self,
        options: GenerateOptions,
        *,
        stepped: bool = False,
        readout: Readout | None = None,
        logprobs_start: int = 0,
        beside: Sequence[LiveContext] = (),
        passes: Sequence[LanePass] = (),
    ) -> HeldStream:
        """Hands the work to the engine; a context that it lost is opened again, once."""
        contexts = (self, *beside)
        for context in contexts:
            context._is_busy = True
        request = GenerateRequest(
            request_id="",
            prompt_ids=[],
            sampling=options.sampling,
            account=self._link.account,
            salt=self._link.salt,
            priority=options.priority,
            prompt_logprobs=options.prompt_logprobs,
            logprobs_start=logprobs_start,
            constraint=options.constraint,
            program=options.program,
            drafter=options.drafter,
            attention=options.attention,
            stepped=stepped,
            readout=readout,
            passes=list(passes),
        )
        try:
            try:
                stream = await self._engine.submit(self._addressed(request, beside))
            except SequenceNotFound:
                self._forget_links(beside)
                stream = await self._engine.submit(self._addressed(request, beside))
        except BaseException:
            for context in contexts:
                context._is_busy = False
            raise
        return HeldStream(stream, self._link)

    def _forget_links(self, beside: Sequence[LiveContext]) -> None:
        """The engine has lost one of the contexts; all are opened anew, and none that it still has is left behind."""
        for context in (self, *beside):
            context._link.release()

    def _addressed(self, request: GenerateRequest, beside: Sequence[LiveContext]) -> GenerateRequest:
        """The request with a name of its own, on the contexts as the engine knows them by now."""
        context_id, *lane_ids = [context._link.sync(context.token_ids, context._edits) for context in (self, *beside)]
        return msgspec.structs.replace(request, request_id=uuid.uuid4().hex, context_id=context_id, lane_ids=lane_ids)

    def _take_in(self, stream: HeldStream, num_tokens: int) -> None:
        """Adds what was generated, up to where the text ended; the engine may be further."""
        self._is_busy = False
        num_kept = 0 if stream.has_failed else num_tokens
        is_whole = stream.has_finished and num_kept == len(stream.token_ids)
        self.token_ids += stream.token_ids[:num_kept]
        num_known = self.length
        self.token_ids += stream.further[: max(num_kept - len(stream.token_ids), 0)]
        if self._is_released:
            return
        self._link.grow(num_known)
        if not is_whole:
            self._link.truncate(self.length, self._edits)

    def _check_options(self, options: GenerateOptions) -> None:
        self._check()
        if not self.token_ids:
            raise ValueError("the context is empty")
        if options.n != 1:
            raise ValueError("one context has one continuation: fork it for more")
        if "" in options.stop:
            raise ValueError("stop must not contain an empty string")
