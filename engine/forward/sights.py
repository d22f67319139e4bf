"""What a shape means for the rows of a step: their positions, and what they see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.forward.shapes import Shape

if TYPE_CHECKING:
    from engine.contexts.masks import Mask


def positions_of(shape: Shape, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Rotary positions of slots start..stop-1."""
    positions = np.arange(start, stop)
    first, last = max(start, shape.start), min(stop, shape.start + len(shape.positions))
    if first < last:
        positions[first - start : last - start] = shape.positions[first - shape.start : last - shape.start]
    return positions


def shaped_mask(shape: Shape, start: int, stop: int) -> Mask | None:
    """What rows start..stop-1 see of slots 0..stop-1; None where each sees all slots up to its own."""
    first, last = max(start, shape.start), min(stop, shape.start + len(shape.sights))
    if first >= last:
        return None
    rows = np.arange(start, stop)
    causal = np.arange(stop) <= rows[:, None]
    visible = causal.copy()
    for row in range(first, last):
        bits = np.unpackbits(np.frombuffer(shape.sights[row - shape.start], np.uint8), bitorder="little")[:stop]
        visible[row - start] = False
        visible[row - start, : len(bits)] = bits
    visible &= causal
    visible[np.arange(len(rows)), rows] = True
    return None if np.array_equal(visible, causal) else visible
