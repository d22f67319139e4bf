"""What a program that judges guesses is told: what a token would be drawn from, and what was guessed by which draw.

Letters: V vocabulary.
"""

from __future__ import annotations

import torch

from engine.drafting.acceptance import probabilities
from engine.drafting.offers import Offer
from engine.programs.session import Guess
from engine.sampling.state import RowState

NO_DRAFT = -1
"""Stands for a token where none is guessed."""


def guess_at(logits: torch.Tensor, row: RowState, draft: int, offer: Offer | None, inputs: frozenset[str]) -> Guess:
    """The guess at one place.

    Args:
        logits: [V] float32 after all that comes before a draw; -inf where a token must not come.
        row: How a token is drawn there.
        draft: The token guessed, or `NO_DRAFT`.
        offer: What it was drawn from, if it was.
        inputs: What the program reads.
    """
    target = probabilities(logits, row).float() if "p" in inputs else None
    return Guess(draft, target, _offered(logits, draft, offer) if "q" in inputs else None)


def _offered(logits: torch.Tensor, draft: int, offer: Offer | None) -> torch.Tensor:
    """What the guess was drawn from: itself where nothing else is said, nothing where there is none."""
    found = torch.zeros_like(logits)
    if offer is not None:
        values = torch.from_numpy(offer.probabilities).to(device=logits.device, dtype=torch.float32)
        found[torch.from_numpy(offer.token_ids).to(logits.device)] = values
    elif draft != NO_DRAFT:
        found[draft] = 1.0
    return found
