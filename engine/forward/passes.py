"""What passes must be, before anything is computed: over rows that are read, or of lanes that go on changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from engine.errors import InvalidRequest
from engine.forward.shapes import MAX_POSITION, MAX_ROWS, Shape
from engine.request import GenerateRequest, LanePass


def validate_passes(request: GenerateRequest, lengths: Sequence[int]) -> None:
    """Refuses a pass that cannot be.

    Args:
        request: One with `passes`.
        lengths: Tokens of each of its contexts.

    Raises:
        InvalidRequest: It names rows or shapes that are not there, or goes with something else that is asked.
    """
    if not request.context_id or len(request.passes) != 1 + len(request.lane_ids):
        raise InvalidRequest("a pass has a lane for each of its held contexts", "passes")
    if goes_on(request):
        _check_going_on(request, lengths)
        return
    if request.stepped or request.constraint is not None or request.prompt_logprobs is not None:
        raise InvalidRequest("a pass reads rows out, and nothing else", "passes")
    if request.program is None and (request.readout is None or request.sampling.max_tokens or request.lane_ids):
        raise InvalidRequest("without a program a pass has one lane, draws nothing, and says what is read", "passes")
    if request.program is not None and (
        request.sampling.max_tokens != 1 or not any(lane.rows for lane in request.passes)
    ):
        raise InvalidRequest("a program draws one token of the rows of a pass, of one at least", "passes")
    if request.readout is not None and (request.readout.top < -1 or not 0.0 <= request.readout.need_mass <= 1.0):
        raise InvalidRequest("top must be -1 or more, and need_mass between 0 and 1", "readout")
    for lane, length in zip(request.passes, lengths, strict=True):
        _check_lane(lane, length)


def goes_on(request: GenerateRequest) -> bool:
    """Whether a program draws from the ends of lanes of which some are changed by adapters from there on."""
    return request.program is not None and any(lane.changes and not _positions(lane) for lane in request.passes)


def _check_going_on(request: GenerateRequest, lengths: Sequence[int]) -> None:
    if request.stepped or request.prompt_logprobs is not None or request.readout is not None:
        raise InvalidRequest("lanes that go on are drawn from by a program, and nothing else is read", "passes")
    for lane, length in zip(request.passes, lengths, strict=True):
        if lane.rows or lane.proposals or _positions(lane):
            raise InvalidRequest("lanes that go on have no rows that are read, and no guess", "rows")
        if lane.shape is not None and (lane.shape.sights or lane.shape.start != length - 1):
            raise InvalidRequest("a lane that goes on is changed from its last token on, and has no mask", "shape")


def _positions(lane: LanePass) -> Sequence[int]:
    return () if lane.shape is None else lane.shape.positions


def _check_lane(lane: LanePass, length: int) -> None:
    if len(lane.rows) > MAX_ROWS:
        raise InvalidRequest(f"{len(lane.rows)} rows are read, at most {MAX_ROWS} can be", "rows")
    if not _is_rising(lane.rows) or (lane.rows and not 0 <= lane.rows[0] <= lane.rows[-1] < length):
        raise InvalidRequest(f"rows must rise within the {length} slots of the history", "rows")
    if lane.shape is not None:
        _check_shape(lane.shape, length)


def _check_shape(shape: Shape, length: int) -> None:
    count = len(shape.positions)
    if not 0 < count <= MAX_ROWS or shape.start < 0 or shape.start + count != length:
        raise InvalidRequest(f"a shape is of the last rows of a history, at most {MAX_ROWS}", "shape")
    if min(shape.positions) < 0 or max(shape.positions) > MAX_POSITION:
        raise InvalidRequest(f"positions must be between 0 and {MAX_POSITION}", "positions")
    if shape.sights and len(shape.sights) != count:
        raise InvalidRequest(f"{len(shape.sights)} rows of the mask for {count} rows", "mask")
    if any(len(bits) > length // 8 + 1 for bits in shape.sights):
        raise InvalidRequest("a row of the mask has more bits than the history has slots", "mask")


def _is_rising(rows: Sequence[int]) -> bool:
    return all(one < other for one, other in pairwise(rows))
