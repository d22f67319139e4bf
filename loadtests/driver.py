"""Drives an engine in this process, without the gateway: submit a batch, step until it has ended, stamp every token."""

from __future__ import annotations

import random
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine.build import build_loop
from engine.config import EngineConfig
from engine.request import ConstraintSpec, DrafterSpec, EngineInfo, FinishReason, GenerateRequest
from engine.sampling.params import SamplingParams
from engine.settling import settle
from engine.stats import EngineStats
from loadtests.workload import random_ids


@dataclass(slots=True)
class SequenceTiming:
    """Times at which tokens of one sequence came out, seconds after the batch was submitted.

    Attributes:
        times: One entry a token.
        num_cached_tokens: Prompt tokens that the prefix cache had.
        token_ids: The tokens.
    """

    times: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token."""
        return self.times[0]

    @property
    def tpot_s(self) -> float:
        """Mean seconds per further token; 0 for a single token."""
        return (self.times[-1] - self.times[0]) / max(1, len(self.times) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTiming:
    """One batch of sequences that were submitted together.

    Attributes:
        num_prompt_tokens: Of all sequences.
        sequences: One entry a sequence.
        wall_s: Until the last one ended.
        num_forced_tokens: Output tokens of all sequences that a constraint left no choice about.
        num_drafted_tokens: Tokens that drafters guessed.
        num_accepted_tokens: Those of them that were right.
    """

    num_prompt_tokens: int
    sequences: Sequence[SequenceTiming]
    wall_s: float
    num_forced_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0

    def after(self, num_tokens: int) -> BatchTiming:
        """The same batch without the first tokens of each sequence.

        Raises:
            ValueError: A sequence has no more than these.
        """
        if any(len(sequence.times) <= num_tokens for sequence in self.sequences):
            raise ValueError(f"no tokens are left after the first {num_tokens}")
        sequences = [SequenceTiming(times=sequence.times[num_tokens:]) for sequence in self.sequences]
        return replace(self, sequences=sequences)

    @property
    def drawn_share(self) -> float:
        """Of all output tokens, those that were drawn."""
        return 1 - self.num_forced_tokens / sum(len(sequence.times) for sequence in self.sequences)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens over the time until every sequence has its first token."""
        return self.num_prompt_tokens / max(sequence.ttft_s for sequence in self.sequences)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens per second while all sequences decode: after the last first token, before the first end.

        None if there is no such time: the answers were too short.
        """
        start = max(sequence.times[0] for sequence in self.sequences)
        end = min(sequence.times[-1] for sequence in self.sequences)
        if end <= start:
            return None
        num_tokens = sum(start < at <= end for sequence in self.sequences for at in sequence.times)
        return num_tokens / (end - start)

    @property
    def ttft_s(self) -> float:
        """Median seconds to the first token."""
        return statistics.median(sequence.ttft_s for sequence in self.sequences)

    @property
    def tpot_s(self) -> float:
        """Median over sequences of the mean seconds per further token."""
        return statistics.median(sequence.tpot_s for sequence in self.sequences)


class EngineDriver:
    """An engine of our own, fed with token ids.

    Attributes:
        info: What was loaded.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._loop = build_loop(config)
        settle()
        self._num_submitted = 0
        self.info: EngineInfo = self._loop.info

    @property
    def stats(self) -> EngineStats:
        """The loop's own counters."""
        return self._loop.stats

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        num_output: int,
        *,
        constraint: ConstraintSpec | None = None,
        temperature: float = 0.0,
        drafters: Sequence[DrafterSpec | None] = (),
        at_once: int | None = None,
    ) -> BatchTiming:
        """Generates `num_output` tokens for each prompt, all submitted at once, or as many as asked for at a time.

        Args:
            prompts: Token ids.
            num_output: Tokens of each.
            constraint: What they must be; of a language whose texts are all longer.
            temperature: 0 is greedy; otherwise draws are the same in every run.
            drafters: One for each prompt, if any has one.
            at_once: The next prompt is submitted when one of so many has ended; None submits all.

        Raises:
            RuntimeError: A sequence did not bring as many tokens as asked for.
        """
        timings: dict[str, SequenceTiming] = {}
        waiting: deque[GenerateRequest] = deque()
        num_forced = self.stats.num_forced_tokens
        num_drafted, num_accepted = self.stats.num_drafted_tokens, self.stats.num_accepted_tokens
        start = time.perf_counter()
        for number, prompt in enumerate(prompts):
            request_id = self._next_id()
            timings[request_id] = SequenceTiming()
            sampling = SamplingParams(max_tokens=num_output, temperature=temperature, seed=number, ignore_eos=True)
            waiting.append(
                GenerateRequest(
                    request_id=request_id,
                    prompt_ids=list(prompt),
                    sampling=sampling,
                    constraint=constraint,
                    drafter=drafters[number] if drafters else None,
                )
            )
        for _ in range(min(at_once or len(waiting), len(waiting))):
            self._loop.submit(waiting.popleft())
        self._step_until_idle(timings, start, waiting)
        wall_s = time.perf_counter() - start
        for timing in timings.values():
            if len(timing.times) != num_output:
                raise RuntimeError(f"asked for {num_output} tokens, got {len(timing.times)}")
        return BatchTiming(
            num_prompt_tokens=sum(map(len, prompts)),
            sequences=list(timings.values()),
            wall_s=wall_s,
            num_forced_tokens=self.stats.num_forced_tokens - num_forced,
            num_drafted_tokens=self.stats.num_drafted_tokens - num_drafted,
            num_accepted_tokens=self.stats.num_accepted_tokens - num_accepted,
        )

    def compile_s(self, constraint: ConstraintSpec) -> float:
        """Seconds from a request with a constraint to the moment at which it could be computed.

        Raises:
            InvalidRequest: The constraint cannot be enforced.
        """
        request = GenerateRequest(
            request_id=self._next_id(),
            prompt_ids=[1],
            sampling=SamplingParams(max_tokens=1),
            constraint=constraint,
        )
        start = time.perf_counter()
        prepared = self._loop.prepare(request)
        assert prepared is not None
        prepared.result()
        return time.perf_counter() - start

    def warm_up(self) -> None:
        """Starts what an engine process starts at its beginning."""
        self._loop.warm_up()

    def close(self) -> None:
        """Lets go of the engine and its memory."""
        self._loop.close()

    def _next_id(self) -> str:
        self._num_submitted += 1
        return f"load-{self._num_submitted}"

    def _step_until_idle(
        self, timings: dict[str, SequenceTiming], start: float, waiting: deque[GenerateRequest]
    ) -> None:
        while self._loop.has_work:
            events = self._loop.step()
            now = time.perf_counter() - start
            for event in events:
                if event.finish_reason is FinishReason.ERROR:
                    raise RuntimeError(f"a sequence failed: {event.error}")
                timing = timings[event.request_id]
                timing.times.extend([now] * len(event.token_ids))
                timing.token_ids += event.token_ids
                if event.finish_reason is not None and waiting:
                    self._loop.submit(waiting.popleft())
                timing.num_cached_tokens = event.num_cached_tokens or timing.num_cached_tokens


class PromptSource:
    """Prompts that share no prefix with any earlier one, so that no cache can help."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._vocab_size = vocab_size

    def draw(self, width: int, num_tokens: int) -> list[list[int]]:
        """`width` prompts of `num_tokens` ids."""
        return [[token % self._vocab_size for token in random_ids(self._rng, num_tokens)] for _ in range(width)]
