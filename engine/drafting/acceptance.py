"""Guesses that were drawn are accepted by chance, so that what comes out is distributed as if nothing was guessed.

A guess x drawn from q stands with probability min(1, p(x) / q(x)), where p is what the token would be drawn from
without it; else a token is drawn in proportion to max(p - q, 0) instead ("Fast Inference from Transformers via
Speculative Decoding", arXiv 2211.17192). Both chances are made of (seed, stream, position), as all randomness is.

Letters: V vocabulary.
"""

from __future__ import annotations

import torch

from engine.drafting.offers import Offer
from engine.sampling.draw import first_argmax
from engine.sampling.random import mix64
from engine.sampling.state import RowState
from engine.sampling.truncation import Limits, truncate

_GAMMA = 0x9E3779B97F4A7C15
_ACCEPTS, _REPLACES = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB
"""Which chance a number is for; none of the plain draw's is among them."""


def decide(logits: torch.Tensor, row: RowState, position: int, offer: Offer) -> int:
    """The token at a place for which one was guessed. Waits for the device.

    Args:
        logits: [V] float32 after all that comes before a draw; -inf where a token must not come.
        row: How it is drawn.
        position: Of the token.
        offer: The guess.
    """
    target = probabilities(logits, row)
    if _chance(row, position, _ACCEPTS) * offer.probability < float(target[offer.token_id]):
        return offer.token_id
    rest = target.clone()
    places = torch.from_numpy(offer.token_ids).to(logits.device)
    rest[places] -= torch.from_numpy(offer.probabilities).to(logits.device)
    sums = rest.clamp_min_(0.0).cumsum(0)
    total = float(sums[-1])
    if total <= 0.0:  # p and q are the same, but for the last bits
        return int(target.argmax())
    place = int(torch.searchsorted(sums, _chance(row, position, _REPLACES) * total, right=True))
    return min(place, int(torch.searchsorted(sums, total)))  # rounding must not reach beyond the last that can come


def probabilities(logits: torch.Tensor, row: RowState) -> torch.Tensor:
    """[V] float64, what the sampler draws from, temperature and truncation included.

    Args:
        logits: [V] float32; not changed.
        row: How it draws.
    """
    if row.is_greedy:
        return torch.zeros_like(logits, dtype=torch.float64).index_fill_(0, first_argmax(logits[None]), 1.0)
    params, values = row.params, logits.clone()[None]
    if row.is_truncated:
        truncate(
            values,
            Limits(
                temperature=torch.tensor([params.temperature], device=logits.device),
                top_k=torch.tensor([row.num_kept(logits.shape[0])], device=logits.device),
                top_p=torch.tensor([row.kept_mass], dtype=torch.float64, device=logits.device),
                min_p=torch.tensor([params.min_p], dtype=torch.float64, device=logits.device),
            ),
        )
    return (values[0].double() / params.temperature).softmax(0)


def _chance(row: RowState, position: int, purpose: int) -> float:
    """A number in [0, 1) for one purpose at one place of a sequence's random stream."""
    key = mix64(row.stream_key + (position + 1) * _GAMMA)
    return (mix64(key + purpose) >> 11) * 2.0**-53
