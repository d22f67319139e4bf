"""What guesses the tokens of a sequence, as the scheduler sees it, and guesses that come from the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.drafting.offers import Offer, read_offer
from engine.request import Proposal


class Drafter(Protocol):
    """Guesses for one sequence.

    Attributes:
        waits: It guesses from tokens that are known: it is asked when none is being drawn.
        is_offering: Its guesses may be drawn ones.
        offers: What the tokens of its last guess were drawn from; one each, or none.
    """

    waits: bool
    is_offering: bool
    offers: Sequence[Offer]

    def propose(self, most: int, num_unknown: int = 0, least: float = 0.0) -> list[int]:
        """Guesses what comes next, often nothing.

        Args:
            most: Tokens at most.
            num_unknown: Tokens that are drawn but not known yet: they are guessed too, and left out of the answer.
            least: Probability with which a token must be right to be worth its row.
        """
        ...


class GivenGuesses:
    """Implements `Drafter` for a caller who guesses: each guess is used once, for the step after it was given.

    Args:
        vocab_size: Guesses end before the first token that is none.
    """

    waits = True
    is_offering = True

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._token_ids: list[int] = []
        self._offers: list[Offer] = []
        self.offers: Sequence[Offer] = ()

    def give(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """Takes a guess instead of any before; it ends where a token cannot have been drawn from what it says."""
        self._token_ids, self._offers = [], []
        for at, token_id in enumerate(token_ids):
            if not 0 <= token_id < self._vocab_size:
                return
            if proposals:
                offer = read_offer(token_id, proposals[at]) if at < len(proposals) else None
                if offer is None or offer.token_ids.min() < 0 or offer.token_ids.max() >= self._vocab_size:
                    return
                self._offers.append(offer)
            self._token_ids.append(token_id)

    def propose(self, most: int, num_unknown: int = 0, least: float = 0.0) -> list[int]:
        """See `Drafter.propose`."""
        del least  # the caller knows what a guess is worth
        token_ids, self._token_ids = self._token_ids, []
        offers, self._offers = self._offers, []
        assert not num_unknown
        self.offers = offers[:most]
        return token_ids[:most]
