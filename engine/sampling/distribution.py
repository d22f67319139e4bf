"""The distribution that a token is drawn from, for callers who want to see it.

It is what constraint, bias, penalties and bans leave of the model's, normalised, before temperature and truncation.

Letters: R rows, V vocabulary, K tokens given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.request import Distribution, Readout
from engine.sampling.logprobs import LEAST_LOGPROB, Logprobs

Gather = Callable[[torch.Tensor, torch.Tensor, int], Logprobs]
"""Reports the likeliest tokens; see `engine.sampling.logprobs.gather_logprobs`."""

_MIN_GIVEN = 16
"""Where few tokens do not make up the mass asked for, at least as many are looked at next."""


def describe(logits: torch.Tensor, readouts: Sequence[Readout], gather: Gather) -> list[Distribution]:
    """Reads distributions out. Waits for the device.

    Args:
        logits: [R, V] float32 as they are drawn from, without NaN; not changed.
        readouts: What is wanted of each row.
        gather: Finds the likeliest tokens.
    """
    num_top = max(1, *(readout.top for readout in readouts))
    targets = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    likeliest = gather(logits, targets, num_top)
    ids, logprobs = likeliest.top_ids, likeliest.top_logprobs
    total = logits.gather(1, ids[:, :1]) - logprobs[:, :1]
    if logits.device.type == "cpu":
        # For numpy, because torch would wake other threads for each of these few operations.
        table = np.maximum(logits.numpy() - total.numpy(), np.float32(LEAST_LOGPROB))
        every, sums = torch.from_numpy(table), np.einsum("rv,rv->r", np.exp(table), table).tolist()
    else:
        every = (logits - total).clamp_min_(LEAST_LOGPROB)
        sums = (every.exp() * every).sum(dim=-1).tolist()
    entropies = [max(0.0, -one) for one in sums]
    return [
        _describe(every[row], ids[row], logprobs[row], readout, entropies[row]) for row, readout in enumerate(readouts)
    ]


def _describe(
    every: torch.Tensor, ids: torch.Tensor, logprobs: torch.Tensor, readout: Readout, entropy: float
) -> Distribution:
    """One row's.

    Args:
        every: [V], log-probabilities of all tokens.
        ids: [K], likeliest tokens, at least as many as wanted for certain.
        logprobs: [K], theirs.
        readout: What is wanted.
        entropy: Of the row.
    """
    if readout.top < 0:
        return Distribution(np.arange(len(every), dtype="<i4").tobytes(), _floats(every.cpu().numpy()), 0.0, entropy)
    values, kept = logprobs.cpu().numpy().astype(np.float64), ids.cpu().numpy()
    mass = np.exp(values).cumsum()
    while mass[-1] < readout.need_mass and len(values) < len(every):
        wider = every.topk(min(max(4 * len(values), _MIN_GIVEN), len(every)))
        values, kept = wider.values.cpu().numpy().astype(np.float64), wider.indices.cpu().numpy()
        mass = np.exp(values).cumsum()
    needed = int(np.count_nonzero(mass < readout.need_mass)) + 1 if readout.need_mass > 0.0 else 0
    possible = int(np.count_nonzero(values > LEAST_LOGPROB))
    count = min(len(values), max(readout.top, needed), possible)
    omitted = 1.0 - mass[count - 1] if 0 < count < len(every) else float(count == 0)
    if count == possible < len(values):
        omitted = 0.0  # nothing else can be drawn
    return Distribution(
        kept[:count].astype("<i4").tobytes(), _floats(values[:count]), max(0.0, float(omitted)), entropy
    )


def _floats(values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> bytes:
    return values.astype("<f4").tobytes()
