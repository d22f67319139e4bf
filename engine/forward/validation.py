"""What requests on several contexts must be."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import ContextTooLong, InvalidRequest
from engine.request import EngineInfo, GenerateRequest

MAX_LANES = 8
"""Contexts of one request: as many as a program reads."""


def validate_lanes(request: GenerateRequest, info: EngineInfo, lengths: Sequence[int]) -> None:
    """Refuses lanes that could never run together.

    Args:
        request: One with `lane_ids`.
        info: Of the engine.
        lengths: Tokens of each context, the first included.

    Raises:
        InvalidRequest: They do not go with something else that is asked, or are no contexts that can be continued.
        ContextTooLong: One of them, or all together, do not fit.
    """
    context_ids = [request.context_id, *request.lane_ids]
    if not request.context_id:
        raise InvalidRequest("lanes are held contexts, the first among them", "context_id")
    if len(set(context_ids)) < len(context_ids):
        raise InvalidRequest("a context can only be one of the lanes: fork it for another", "lane_ids")
    if len(context_ids) > MAX_LANES:
        raise InvalidRequest(f"{len(context_ids)} lanes, at most {MAX_LANES} can draw together", "lane_ids")
    if request.program is None:
        raise InvalidRequest("lanes draw together by a device program only", "program")
    if request.prompt_logprobs is not None or request.sampling.logprobs is not None:
        raise InvalidRequest("lanes that draw together report no log-probabilities", "lane_ids")
    num_new = request.sampling.max_tokens
    if num_new < 1:
        raise InvalidRequest("lanes that draw together draw at least one token", "max_tokens")
    for length in lengths:
        if length == 0:
            raise InvalidRequest("a context is empty: there is nothing to go on from", "lane_ids")
        if length + num_new > info.limit_tokens:
            raise ContextTooLong(info.limit_tokens, length, num_new)
    # A page each for the copy of a shared page while both are there.
    if sum(-(-(length + num_new) // info.page_size) + 1 for length in lengths) > info.num_pages:
        raise ContextTooLong(info.pool_tokens, sum(lengths), num_new * len(lengths))
