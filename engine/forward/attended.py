"""What may be asked of the attention of rows, and which rows of a lane that concerns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.attention.scores import Attends
from engine.errors import InvalidRequest
from engine.forward.passes import goes_on
from engine.request import EngineInfo, GenerateRequest

if TYPE_CHECKING:
    from engine.contexts.held import HeldContext
    from engine.scheduling.batch import Lane

MAX_SCORES = 1 << 20
"""Numbers of one answer: rows times slots, times layers where each is wanted."""
MAX_SUMMED = 1 << 22
"""The same where only their sum is answered."""


def validate_attention(request: GenerateRequest, info: EngineInfo, lengths: Sequence[int]) -> None:
    """Refuses what cannot be read of attention.

    Args:
        request: One with `attention`.
        info: Of the engine.
        lengths: Tokens of each of its contexts.

    Raises:
        InvalidRequest: It cannot be read here, names what is not there, is too much, or goes with something else.
    """
    spec = request.attention
    assert spec is not None
    if not info.reads_attention:
        raise InvalidRequest("what rows attend to cannot be read here: the server does without", "attention")
    is_single = request.program is not None and request.sampling.max_tokens == 1
    if not request.context_id or not (request.passes or is_single) or request.constraint or request.stepped:
        raise InvalidRequest("attention is read of a pass over held contexts, or of one draw of a program", "attention")
    if spec.reduce not in ("mean", "max"):
        raise InvalidRequest("reduce must be mean or max", "reduce")
    for name, chosen, count in (("layers", spec.layers, info.num_layers), ("heads", spec.heads, info.num_heads)):
        if len(set(chosen)) < len(chosen) or any(not 0 <= one < count for one in chosen):
            raise InvalidRequest(f"{name} are numbered from 0 to {count - 1}, each named once", name)
    rows = [1] * len(lengths) if _is_of_ends(request) else [len(lane.rows) for lane in request.passes]
    count = sum(num_rows * length for num_rows, length in zip(rows, lengths, strict=True))
    of_layers = ""
    if spec.by_layer:
        num_layers = len(spec.layers) or info.num_layers
        count, of_layers = count * num_layers, f" in {num_layers} layers"
    most = MAX_SUMMED if spec.total else MAX_SCORES
    if count > most:
        message = f"attention of {sum(rows)} rows{of_layers} would be {count} numbers, at most {most} are read"
        raise InvalidRequest(message, "rows")


def _is_of_ends(request: GenerateRequest) -> bool:
    """Whether a program draws from the ends of lanes, so that attention is told of the last row of each."""
    return not request.passes or goes_on(request)


def attended_rows(request: GenerateRequest, lane: Lane, context: HeldContext) -> Attends | None:
    """The rows of a lane that are asked; None if none is."""
    rows: Sequence[int] = lane.reads
    if _is_of_ends(request) and lane.samples:
        rows = [lane.num_tokens - 1]
    if not rows or request.attention is None:
        return None
    if not lane.offset:
        return Attends(rows, request.attention)
    held = np.ones(lane.stop, dtype=bool)
    for gap in context.gaps:
        held[gap.start : gap.stop] = False
    return Attends(rows, request.attention, np.flatnonzero(held))
