"""Rows of a history with positions and sights of their own: what trees of guesses and masks of any kind are made of.

A shape says, from position `start` of a history on, which rotary position each row has and which slots it sees. Like
an edit it is part of what the KV is a function of: with it the rows can be computed in any pieces, given up and
computed again. What others share of such a history ends where the shape begins.

    slot       0 ........ start-1 | start   start+1   start+2   start+3
    position   0 ........ start-1 |   7        8         8         9         one guess, two that could follow it, ...
    sees       all before         | all, and of the rows what its bits say; each row always sees itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from engine.contexts.masks import Mask

MAX_ROWS = 512
"""Rows with a shape of their own."""
MAX_POSITION = 2**31 - 1


class Shape(msgspec.Struct, frozen=True):
    """Positions and sights of the rows from `start` on, of which there are as many as positions.

    Attributes:
        start: Slot of the first row.
        positions: Rotary positions.
        sights: For each row the slots that it sees, a bit each (least significant first, slot 0 first); what is beyond
            the end of the bits is not seen. Empty where every row sees all slots up to its own.
    """

    start: int
    positions: list[int]
    sights: list[bytes] = []


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
