"""What a drafter may be asked for."""

from __future__ import annotations

from engine.errors import InvalidRequest
from engine.request import DrafterSpec

MAX_DRAFT_TOKENS = 64
"""Most tokens that a drafter guesses at a time."""

MAX_MATCH_TOKENS = 32
"""Longest run of tokens that a drafter looks for."""


def check_drafter(drafter: DrafterSpec, vocab_size: int) -> None:
    """Refuses a drafter that makes no sense.

    Raises:
        InvalidRequest: A number is out of range.
    """
    if not 1 <= drafter.max_tokens <= MAX_DRAFT_TOKENS:
        raise InvalidRequest(f"max_tokens must be between 1 and {MAX_DRAFT_TOKENS}", f"{drafter.param}.max_tokens")
    if not 1 <= drafter.min_match <= drafter.max_match <= MAX_MATCH_TOKENS:
        message = f"min_match and max_match must be between 1 and {MAX_MATCH_TOKENS}, min_match not above max_match"
        raise InvalidRequest(message, f"{drafter.param}.min_match")
    if drafter.reference_ids and not (min(drafter.reference_ids) >= 0 and max(drafter.reference_ids) < vocab_size):
        raise InvalidRequest(f"the reference holds ids outside the vocabulary of {vocab_size}", drafter.param)
