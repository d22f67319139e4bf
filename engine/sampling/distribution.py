"""The distribution that a token is drawn from, for callers who want to see it.

It is what constraint, bias, penalties and bans leave of the model's, normalised, before temperature and truncation.

Letters: R rows, V vocabulary, K tokens given.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.request import Distribution, Readout

_MIN_GIVEN = 16
"""Where few tokens do not make up the mass asked for, at least as many are looked at next."""


def describe(logits: torch.Tensor, readouts: list[Readout]) -> list[Distribution]:
    """Reads distributions out. Waits for the device.

    Args:
        logits: [R, V] float32 as they are drawn from.
        readouts: What is wanted of each row.
    """
    logprobs = logits.log_softmax(dim=-1)
    probs = logprobs.exp()
    entropies = -(probs * logprobs.clamp_min(-1e9)).sum(dim=-1, dtype=torch.float64)
    return [
        _describe(logprobs[row], probs[row], readout, float(entropies[row])) for row, readout in enumerate(readouts)
    ]


def _describe(logprobs: torch.Tensor, probs: torch.Tensor, readout: Readout, entropy: float) -> Distribution:
    size = len(logprobs)
    if readout.top < 0:
        return Distribution(np.arange(size, dtype="<i4").tobytes(), _floats(logprobs), 0.0, max(0.0, entropy))
    count = min(readout.top, size)
    while True:
        values, ids = logprobs.topk(count)
        given = float(probs[ids].sum(dtype=torch.float64))
        if given >= readout.need_mass or count == size:
            break
        count = min(max(4 * count, _MIN_GIVEN), size)
    count = _enough(values, count, readout)
    return Distribution(
        ids[:count].cpu().numpy().astype("<i4").tobytes(),
        _floats(values[:count]),
        max(0.0, 1.0 - float(values[:count].exp().sum(dtype=torch.float64))) if count < size else 0.0,
        max(0.0, entropy),
    )


def _floats(values: torch.Tensor) -> bytes:
    return values.cpu().numpy().astype("<f4").tobytes()


def _enough(values: torch.Tensor, count: int, readout: Readout) -> int:
    """The fewest tokens that make up the mass asked for, at least as many as asked for, and none that cannot be."""
    mass = values.exp().cumsum(dim=-1, dtype=torch.float64)
    needed = int((mass < readout.need_mass).sum()) + 1
    return min(count, max(readout.top, needed), int((values > -1e8).sum()))
