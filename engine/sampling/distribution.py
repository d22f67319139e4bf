"""The distribution that a token is drawn from, for callers who want to see it.

It is what constraint, bias, penalties and bans leave of the model's, normalised, before temperature and truncation.

Letters: R rows, V vocabulary, D distributions, K tokens given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.request import Distribution, Readout
from engine.sampling.logprobs import LEAST_LOGPROB, gather_logprobs

_MIN_GIVEN = 16
"""Where few tokens do not make up the mass asked for, at least as many are looked at next."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What distributions look like, on the host.

    Attributes:
        log_totals: [D] float64, logarithm of the sum of exp(logit): a log-probability is a logit less this.
        entropies: [D] float64, in nats.
        top_ids: [D, K] int64, likeliest first; of equals the lower id comes first.
        top_logprobs: [D, K] float32, at least `LEAST_LOGPROB`.
    """

    log_totals: npt.NDArray[np.float64]
    entropies: npt.NDArray[np.float64]
    top_ids: npt.NDArray[np.int64]
    top_logprobs: npt.NDArray[np.float32]


Outliner = Callable[[torch.Tensor, Sequence[int], int], Outline]
"""Looks at rows of logits; see `outline`, which is one."""


def outline(logits: torch.Tensor, places: Sequence[int], num_top: int) -> Outline:
    """Looks at rows of logits. Waits for the device.

    Args:
        logits: [R, V] float32; NaN and +inf may be replaced in place.
        places: D of the rows, rising.
        num_top: K, 1 to V.
    """
    values = logits if len(places) == len(logits) else logits[list(places)]
    targets = torch.zeros(len(values), dtype=torch.int64, device=values.device)
    found = gather_logprobs(values, targets, num_top)
    totals = values.logsumexp(dim=-1, keepdim=True)
    every = (values - totals).nan_to_num_(nan=LEAST_LOGPROB).clamp_min_(LEAST_LOGPROB)
    entropies = -(every.exp() * every).sum(dim=-1).double()
    return Outline(
        totals.squeeze(1).double().cpu().numpy(),
        entropies.clamp_min_(0.0).cpu().numpy(),
        found.top_ids.cpu().numpy(),
        found.top_logprobs.cpu().numpy(),
    )


def describe(
    logits: torch.Tensor, places: Sequence[int], readouts: Sequence[Readout], look: Outliner
) -> list[Distribution]:
    """Reads distributions out. Waits for the device.

    Args:
        logits: [R, V] float32 as they are drawn from; NaN and +inf may be replaced in place.
        places: Rows of those wanted, rising.
        readouts: What is wanted of each.
        look: Says what they look like.
    """
    vocab_size = logits.shape[1]
    num_top = min(max(1, *(readout.top for readout in readouts)), vocab_size)
    seen = look(logits, places, num_top)
    likeliest = _pack(seen)
    found = []
    for at, (place, readout) in enumerate(zip(places, readouts, strict=True)):
        entropy = float(seen.entropies[at])
        if readout.top < 0:
            every = _every(logits[place], float(seen.log_totals[at])).tobytes()
            found.append(Distribution(np.arange(vocab_size, dtype="<i4").tobytes(), every, 0.0, entropy))
            continue
        one, given = likeliest[at], num_top
        while one.mass[-1] < readout.need_mass and given < vocab_size:
            given = min(max(4 * given, _MIN_GIVEN), vocab_size)
            one = _pack(look(logits, [place], given))[0]
        found.append(_describe(one, readout, vocab_size, entropy))
    return found


def describe_outline(seen: Outline, readouts: Sequence[Readout], vocab_size: int) -> list[Distribution]:
    """What is wanted of distributions of which enough is known: none wants all, or more than were looked at.

    Args:
        seen: D of them.
        readouts: What is wanted of each.
        vocab_size: V.
    """
    rows = zip(_pack(seen), readouts, seen.entropies.tolist(), strict=True)
    return [_describe(likeliest, readout, vocab_size, entropy) for likeliest, readout, entropy in rows]


@dataclass(frozen=True, slots=True)
class _Likeliest:
    """A row's likeliest tokens.

    Attributes:
        ids: [K] little-endian int32.
        logprobs: [K] little-endian float32.
        mass: [K] float64, probability of each and all before it.
        num_possible: Those that can be drawn at all.
    """

    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    mass: npt.NDArray[np.float64]
    num_possible: int


def _pack(seen: Outline) -> list[_Likeliest]:
    ids, logprobs = seen.top_ids.astype("<i4"), seen.top_logprobs.astype("<f4", copy=False)
    mass = np.exp(seen.top_logprobs, dtype=np.float64).cumsum(axis=1)
    num_possible = np.count_nonzero(seen.top_logprobs > LEAST_LOGPROB, axis=1).tolist()
    return [_Likeliest(*one) for one in zip(ids, logprobs, mass, num_possible, strict=True)]


def _every(row: torch.Tensor, log_total: float) -> npt.NDArray[np.float32]:
    """[V], log-probabilities of all tokens."""
    values = row.cpu().numpy() - np.float32(log_total)
    # The lesser of a NaN and a number is the number: what a broken model may return counts as impossible.
    return np.fmax(values, np.float32(LEAST_LOGPROB)).astype("<f4", copy=False)


def _describe(likeliest: _Likeliest, readout: Readout, vocab_size: int, entropy: float) -> Distribution:
    """One row's, of its likeliest tokens, which are at least as many as wanted for certain."""
    mass = likeliest.mass
    needed = int(np.searchsorted(mass, readout.need_mass)) + 1 if readout.need_mass > 0.0 else 0
    count = min(len(mass), max(readout.top, needed), likeliest.num_possible)
    omitted = 1.0 - float(mass[count - 1]) if 0 < count < vocab_size else float(count == 0)
    if count == likeliest.num_possible < len(mass):
        omitted = 0.0  # nothing else can be drawn
    ids, logprobs = likeliest.ids[:count].tobytes(), likeliest.logprobs[:count].tobytes()
    return Distribution(ids, logprobs, max(0.0, omitted), entropy)
