"""Guessed tokens that were drawn, and what they were drawn from.

Letters: V vocabulary, N tokens that could have been drawn.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from engine.request import Proposal


class Offer(msgspec.Struct, frozen=True, eq=False):
    """One guessed token.

    Attributes:
        token_id: The guess.
        token_ids: [N] int64, what it could have been, itself among them, each once.
        probabilities: [N] float64 of those, positive in sum 1.
        probability: Its own, positive.
    """

    token_id: int
    token_ids: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    probability: float


def make_offer(token_id: int, token_ids: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> Offer | None:
    """An offer, its weights made probabilities; None if the token cannot have been drawn from those.

    Args:
        token_id: The guess.
        token_ids: [N], inside the vocabulary, each once.
        weights: [N].
    """
    total = weights.sum() if len(weights) else 0.0
    if len(token_ids) != len(weights) or not np.isfinite(total) or total <= 0.0 or weights.min() < 0.0:
        return None
    found = weights[token_ids == token_id]
    if len(found) != 1 or found[0] <= 0.0:
        return None
    return Offer(token_id, token_ids, weights / total, float(found[0] / total))


def read_offer(token_id: int, proposal: Proposal) -> Offer | None:
    """The offer that a caller's proposal makes; None as there."""
    token_ids = np.frombuffer(proposal.token_ids, "<i4").astype(np.int64)
    return make_offer(token_id, token_ids, np.frombuffer(proposal.weights, "<f8"))
