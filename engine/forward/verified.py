"""What a pass must be whose program judges a guess: one lane, which ends in a token and the guess behind it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.drafting.limits import MAX_DRAFT_TOKENS
from engine.drafting.offers import Offer, read_offer
from engine.errors import InvalidRequest
from engine.programs.binding import BoundProgram
from engine.programs.purposes import VERIFY
from engine.request import GenerateRequest


def validate_guess(request: GenerateRequest, program: BoundProgram, token_ids: Sequence[int], vocab_size: int) -> None:
    """Refuses what a program that judges guesses cannot judge.

    Args:
        request: Any with a program.
        program: That.
        token_ids: Of the request's context.
        vocab_size: Of the model.

    Raises:
        InvalidRequest: The rows are no guess, or cannot have been drawn from what they say.
    """
    judges = program.function == VERIFY
    if not judges and any(lane.proposals for lane in request.passes):
        raise InvalidRequest("proposals are for a program that judges guesses", "proposals")
    if not judges:
        return
    if request.lane_ids:
        raise InvalidRequest("a guess is judged in one lane", "lane_ids")
    if not request.passes:
        return
    (lane,) = request.passes
    length, count = len(token_ids), len(lane.rows)
    if not 0 < count <= MAX_DRAFT_TOKENS + 1 or lane.rows != list(range(length - count, length)):
        message = f"a guess is the last rows of its lane, a token and up to {MAX_DRAFT_TOKENS} that are guessed"
        raise InvalidRequest(message, "rows")
    if program.graph.states:
        raise InvalidRequest("all rows of a pass are judged at once, so that there is no state", "program")
    if lane.proposals and len(lane.proposals) != count - 1:
        raise InvalidRequest(f"{len(lane.proposals)} proposals for {count - 1} guessed tokens", "proposals")
    for offer in pass_offers(request, token_ids):
        if offer is None or offer.token_ids.min() < 0 or offer.token_ids.max() >= vocab_size:
            raise InvalidRequest("a guessed token cannot have been drawn from its proposal", "proposals")


def pass_offers(request: GenerateRequest, token_ids: Sequence[int]) -> list[Offer | None]:
    """What the guessed tokens of a pass were drawn from; none if they were not."""
    proposals = request.passes[0].proposals if request.passes else []
    guess = token_ids[len(token_ids) - len(proposals) :]
    return [read_offer(token_id, proposal) for token_id, proposal in zip(guess, proposals, strict=True)]
