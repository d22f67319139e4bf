"""Distributions as a device writes them down: the host reads them when the step has ended, and never waits before.

A row holds the logarithm of the sum, the entropy, `MOST_LOOKED` token ids, likeliest first, and as many of their
log-probabilities: 32 bits each, ids as integers and the rest as floats.

Letters: D distributions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from engine.request import Distribution, Readout
from engine.sampling.distribution import Outline, describe_outline

MOST_LOOKED = 64
"""Likeliest tokens that are written down."""

NUM_WORDS = 2 + 2 * MOST_LOOKED
"""Of a row."""


class WrittenLooks(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Distributions on their way to the host.

    Attributes:
        rows: [at least D, `NUM_WORDS`] int32.
        wanted: D rows of these, and what is wanted of each.
        vocab_size: V.
    """

    rows: torch.Tensor
    wanted: Sequence[tuple[int, Readout]]
    vocab_size: int

    def read(self) -> list[Distribution]:
        """D of them, in order; to be called once the rows have arrived."""
        words = self.rows.numpy()[[row for row, _ in self.wanted]]
        numbers = words.view(np.float32)
        count = min(MOST_LOOKED, self.vocab_size)
        seen = Outline(
            numbers[:, 0].astype(np.float64),
            numbers[:, 1].astype(np.float64),
            words[:, 2 : 2 + count].astype(np.int64),
            numbers[:, 2 + MOST_LOOKED : 2 + MOST_LOOKED + count],
        )
        return describe_outline(seen, [readout for _, readout in self.wanted], self.vocab_size)


def can_be_written(readout: Readout) -> bool:
    """Whether a row holds all that is wanted of a distribution, whatever that is."""
    return 0 < readout.top <= MOST_LOOKED and readout.need_mass <= 0.0
