"""What a program is given in one step, and what it gives back, for one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepValues:
    """What the step knows about one request; V tokens of the vocabulary, T of the history.

    Attributes:
        vocab_size: V.
        logits: [V] float32, or None if the program reads `lanes`.
        lanes: [V] float32 for each lane that the program reads.
        key: Random key of this position: an unsigned 64-bit number, see `engine.sampling.random`.
        step: Output tokens before this one.
        history: [T] int64, prompt and output.
        counts: [V] int64, how often each token is in the output.
        others: Inputs of functions that are no part of a step, by name.
    """

    vocab_size: int
    logits: npt.NDArray[np.float32] | None = None
    lanes: Sequence[npt.NDArray[np.float32]] = ()
    key: int = 0
    step: int = 0
    history: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counts: npt.NDArray[np.int64] | None = None
    others: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a program made of it.

    Attributes:
        token: As returned; may lie outside of the vocabulary, which is the program's mistake.
        state: Carried to the next step, by name.
        probes: By name.
    """

    token: int
    state: Mapping[str, Array]
    probes: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class GuessResult:
    """What a program guessed.

    Attributes:
        tokens: As returned; may lie outside of the vocabulary, where the guess ends.
        weights: [V] float32 for each, what it was drawn from; empty if none says so.
        state: Carried to the next guess, by name.
    """

    tokens: Sequence[int]
    weights: Sequence[npt.NDArray[np.float32]]
    state: Mapping[str, Array]
