"""Rows of a history with positions and sights of their own: what trees of guesses and masks of any kind are made of.

A shape says, from position `start` of a history on, which rotary position each row has and which slots it sees. Like
an edit it is part of what the KV is a function of: with it the rows can be computed in any pieces, given up and
computed again. What others share of such a history ends where the shape begins.

A shape without positions has no end: from `start` on rows are like any others but for their adapter, and so are those
of tokens that are drawn.

    slot       0 ........ start-1 | start   start+1   start+2   start+3
    position   0 ........ start-1 |   7        8         8         9         one guess, two that could follow it, ...
    sees       all before         | all, and of the rows what its bits say; each row always sees itself
"""

from __future__ import annotations

import msgspec

MAX_ROWS = 512
"""Rows with a shape of their own."""
MAX_POSITION = 2**31 - 1


class Shape(msgspec.Struct, frozen=True):
    """Positions and sights of the rows from `start` on, of which there are as many as positions.

    Attributes:
        start: Slot of the first row.
        positions: Rotary positions; none where all rows from `start` on have those of any history.
        sights: For each row the slots that it sees, a bit each (least significant first, slot 0 first); what is beyond
            the end of the bits is not seen. Empty where every row sees all slots up to its own.
        adapter: Digest of what adapters do to these rows alone; empty for nothing.
    """

    start: int
    positions: list[int]
    sights: list[bytes] = []
    adapter: str = ""
