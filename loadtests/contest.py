"""Several contestants on the same work, taking turns: what they do, in which order, and what is drawn from it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from loadtests.driver import BatchTiming, PromptSource

Phase = Literal["decode", "prefill"]
Run = Callable[[Sequence[Sequence[int]], int], BatchTiming]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One piece of work.

    Attributes:
        phase: Which rate counts: decoding while all sequences decode, or the prompt to its first token.
        width: Sequences together.
        num_prompt, num_output: Tokens of each.
    """

    phase: Phase
    width: int
    num_prompt: int
    num_output: int

    @property
    def label(self) -> str:
        """For the table, e.g. `decode, width 8`."""
        return f"decode, width {self.width}" if self.phase == "decode" else f"prefill, {self.num_prompt} tokens"


def shapes(widths: Sequence[int], num_prompt: int, num_output: int, prefills: Sequence[int]) -> list[Shape]:
    """Decode at each width, then one prompt of each length alone."""
    decode = [Shape(phase="decode", width=width, num_prompt=num_prompt, num_output=num_output) for width in widths]
    return decode + [Shape(phase="prefill", width=1, num_prompt=length, num_output=1) for length in prefills]


class Contestant(Protocol):
    """Somebody who can be measured.

    Attributes:
        name: Differs from every other's.
    """

    @property
    def name(self) -> str:
        """For the table."""

    def rate(self, shape: Shape) -> float:
        """Does the work once and returns tokens per second of its phase."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchContestant:
    """Anyone whose tokens are stamped: an engine of ours, or a peer that is driven token by token.

    Attributes:
        name: For the table.
        run: Generates as many tokens for each prompt.
        prompts: Draws prompts that no cache can know.
    """

    name: str
    run: Run
    prompts: PromptSource

    def rate(self, shape: Shape) -> float:
        """Tokens per second.

        Raises:
            ValueError: The answers are too short for the rate to exist.
        """
        batch = self.run(self.prompts.draw(shape.width, shape.num_prompt), shape.num_output)
        if shape.phase == "prefill":
            return batch.prefill_tokens_per_s
        rate = batch.decode_tokens_per_s
        if rate is None:
            raise ValueError(f"{shape.label}: {shape.num_output} tokens are too few to measure decoding")
        return rate


@dataclass(slots=True)
class Rates:
    """Tokens per second of every contestant on one shape, an entry a round."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """Median over rounds, or None if nobody of that name took part."""
        rounds = self.by_name.get(name)
        return statistics.median(rounds) if rounds else None

    def ratio(self, name: str, other: str) -> float | None:
        """Median of the rounds' own ratios, or None if either did not take part."""
        ours, theirs = self.by_name.get(name), self.by_name.get(other)
        if not ours or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def compete(
    entries: Mapping[Shape, Sequence[Contestant]], rounds: int, before_round: Callable[[], None] | None = None
) -> dict[Shape, Rates]:
    """Every contestant on every shape it is entered for, `rounds` times; the order is turned round every time.

    Args:
        entries: Who does what.
        rounds: Medians are taken over as many.
        before_round: Called before each, if given.
    """
    rates = {shape: Rates() for shape in entries}
    for turn in range(rounds):
        if before_round is not None:
            before_round()
        for shape, contestants in entries.items():
            for contestant in contestants if turn % 2 == 0 else reversed(contestants):
                rate = contestant.rate(shape)
                rates[shape].by_name.setdefault(contestant.name, []).append(rate)
                print(f"round {turn + 1}: {shape.label}: {contestant.name}: {rate:.4g} tokens/s", flush=True)
    return rates
