"""What the rows of one lane see of an edited history, slot by slot.

Letters: N rows of the lane, C slots of its context: the positions before its end that were not freed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.contexts.edits import Edit, Gap

Mask = npt.NDArray[np.bool_]


def lane_mask(edits: Sequence[Edit], gaps: Sequence[Gap], start: int, stop: int, window: int | None) -> Mask | None:
    """Builds the mask of positions start..stop-1.

    Args:
        edits: Of the history.
        gaps: Freed already; all end before `start`.
        start: First position of the lane.
        stop: End of the lane.
        window: Positions that a token sees back, itself included, if the model has a limit.

    Returns:
        [N, C] bool; None where each row sees all slots up to its own.
    """
    held = np.ones(stop, dtype=bool)
    for gap in gaps:
        held[gap.start : gap.stop] = False
    columns, rows = np.flatnonzero(held), np.arange(start, stop)
    causal = columns <= rows[:, None]
    visible, hidden = causal.copy(), np.zeros(stop, dtype=bool)
    for edit in edits:
        if edit.since <= start:
            hidden[edit.start : edit.stop] = True
        elif edit.since < stop:
            first, last = np.searchsorted(columns, (edit.start, edit.stop))
            visible[edit.since - start :, first:last] = False
    visible[:, hidden[columns]] = False
    if window is not None and gaps:
        visible &= rows[:, None] - columns < window
    own = np.searchsorted(columns, rows)
    visible[np.arange(len(rows)), own] = True
    if np.array_equal(visible, causal):
        return None
    if window is not None:
        visible &= rows[:, None] - columns < window
    return visible
