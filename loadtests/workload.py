"""Seeded work: when requests arrive, how long their prompts and answers are. The same seed gives the same work."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

FIRST_ID = 1000
LAST_ID = 20_000
"""Prompt ids are drawn from a range that lies in every served vocabulary, above the usual special tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Token counts drawn evenly from low..high, ends included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"lengths must be 1 <= low <= high, got {self.low}..{self.high}")

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """Reads `128` or `64:256`.

        Raises:
            ValueError: It is neither.
        """
        low, _, high = text.partition(":")
        return cls(low=int(low), high=int(high or low))

    def draw(self, rng: random.Random) -> int:
        """One length."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request of a workload.

    Attributes:
        arrival_s: When it arrives, seconds after the start; 0 in a closed loop, where a free client takes the next.
        prompt_ids: Its prompt.
        max_tokens: Tokens to generate, all of them (end ids are ignored).
        seed: For sampling.
    """

    arrival_s: float
    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """How to draw requests.

    Attributes:
        num_requests: How many.
        prompt: Prompt lengths in tokens.
        output: Answer lengths in tokens.
        rate: Requests per second of a Poisson process (open loop), or None for a closed loop.
        shared_prefix: Tokens that all prompts begin with, on top of their own.
        seed: Draws everything.
    """

    num_requests: int
    prompt: Lengths
    output: Lengths
    rate: float | None = None
    shared_prefix: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise ValueError(f"num_requests must be at least 1, got {self.num_requests}")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ValueError(f"rate must be positive and finite, got {self.rate}")
        if self.shared_prefix < 0:
            raise ValueError(f"shared_prefix must not be negative, got {self.shared_prefix}")

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival."""
        rng = random.Random(self.seed)
        prefix = random_ids(rng, self.shared_prefix)
        arrival_s = 0.0
        for _ in range(self.num_requests):
            if self.rate is not None:
                arrival_s += rng.expovariate(self.rate)
            prompt_ids = prefix + random_ids(rng, self.prompt.draw(rng))
            yield Request(
                arrival_s=arrival_s,
                prompt_ids=prompt_ids,
                max_tokens=self.output.draw(rng),
                seed=rng.getrandbits(31),
            )


def random_ids(rng: random.Random, num_tokens: int) -> tuple[int, ...]:
    """Token ids without meaning, none of them special."""
    return tuple(rng.randrange(FIRST_ID, LAST_ID) for _ in range(num_tokens))
