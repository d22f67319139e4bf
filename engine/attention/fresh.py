"""Prompts that a step computes from their first token on: their K and V are what the step itself computes.

Such lanes need no pages to attend by: in batches of lanes of one size they are what a library's dense attention takes.
Where every such lane fills its size, the step's rows are those batches as they are, one for lanes of one size that lie
one behind the other; else each lane is put into rows of its own behind the step's, filled up to its size. As a row sees
nothing behind itself, what is in the filling changes nothing.

    step's rows    | decode | 2,048 | 2,048 | chunk |          the batch is a view
    step's rows    | 1,900 | 700 |     behind them: | 1,900 + 20 | 700 + 68 |

Libraries prepare each shape of a batch for some time and keep what they made: sizes are few, and batches bounded.

Letters: T rows of the step, L lanes, M rows behind the step's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.attention.backend import LaneLayout

Numbers = npt.NDArray[np.int64]

LEAST_FILLED_ROWS = 960
"""Rows of the shortest lane that is worth being filled up: results of such lanes are copied once more."""

MOST_FILLED_BATCHES = 2
"""Batches of such lanes that are worth it: on an H200, lanes of four sizes take cuDNN 1.4 times as long as Triton."""

SIZES = (*range(512, 1024, 128), *range(1024, 4096, 256), *range(4096, 8193, 512))
"""Rows of lanes that are taken as they are, and that others are filled up to."""

BATCH_ROWS = 8192
"""Rows of a batch at most, filling included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Which lanes are taken, and how.

    Attributes:
        sizes: Rows of lanes that are taken as they are, rising; others are filled up to the next.
        least_filled: Rows of the shortest lane that is.
        batch_rows: Rows of a batch at most, filling included.
        most_filled: Batches at most where lanes are filled up.
    """

    sizes: Sequence[int] = SIZES
    least_filled: int = LEAST_FILLED_ROWS
    batch_rows: int = BATCH_ROWS
    most_filled: int = MOST_FILLED_BATCHES

    def size_of(self, num_rows: int) -> int:
        """The size of a lane that is taken."""
        return self.sizes[bisect_left(self.sizes, num_rows)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Lanes of a batch that lie one behind the other in the step and have as many rows each.

    Attributes:
        first_row: Of the first lane in the step.
        num_lanes: How many.
        num_rows: Of each.
        place: Of the first among the lanes of the batch.
    """

    first_row: int
    num_lanes: int
    num_rows: int
    place: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Lanes that are attended to in one call.

    Attributes:
        start: Its first row among dense ones: of the step, or behind it.
        num_lanes: How many.
        size: Rows of each, filling included.
        runs: Where its results go.
    """

    start: int
    num_lanes: int
    size: int
    runs: tuple[Run, ...]

    @property
    def stop(self) -> int:
        """Its last row and one."""
        return self.start + self.num_lanes * self.size


@dataclass(frozen=True, kw_only=True, slots=True)
class FreshLanes:
    """The fresh lanes of a step.

    Attributes:
        is_taken: [L] bool, which lanes they are.
        batches: They, in calls.
        num_behind: M, 0 where the batches are rows of the step.
        targets: [T] int64, where M is not 0: the row of each of the step's rows, T + m for those that are behind it.
    """

    is_taken: npt.NDArray[np.bool_]
    batches: tuple[Batch, ...]
    num_behind: int = 0
    targets: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class Shape(NamedTuple):
    """What a library prepares once.

    Attributes:
        num_lanes: Of a batch.
        size: Rows of each.
        is_behind: They lie behind the step's rows, and so does V; else V is where the product left it.
    """

    num_lanes: int
    size: int
    is_behind: bool


@dataclass(frozen=True, slots=True)
class _Lane:
    first_row: int
    num_rows: int
    size: int


def fresh_lanes(layout: LaneLayout, cuts: Cuts, longest: int | None = None) -> FreshLanes | None:
    """Finds the fresh lanes of a step.

    Args:
        layout: The step.
        cuts: Which lanes are taken.
        longest: Most rows of a lane: of a sliding window, which shorter ones do not notice.

    Returns:
        They; None where there are none.
    """
    tables = layout.tables
    starts = tables.query_starts
    num_rows = starts[1:] - starts[:-1]
    most = min(cuts.sizes[-1], cuts.batch_rows, longest or cuts.batch_rows)
    is_worth_it = (num_rows >= cuts.least_filled) | np.isin(num_rows, cuts.sizes)
    is_taken = (num_rows == tables.context_lens) & (num_rows <= most) & is_worth_it
    for lane, mask in enumerate(layout.masks):
        if mask is not None:
            is_taken[lane] = False
    numbers = np.flatnonzero(is_taken)
    if not len(numbers):
        return None
    lanes = [_Lane(int(starts[lane]), int(num_rows[lane]), cuts.size_of(int(num_rows[lane]))) for lane in numbers]
    if all(lane.num_rows == lane.size for lane in lanes):
        return FreshLanes(is_taken=is_taken, batches=_batches_in_place(lanes, cuts))
    filled = _batches_behind(lanes, cuts, int(starts[-1]), is_taken)
    if len(filled.batches) <= cuts.most_filled:
        return filled
    whole = [lane for lane in lanes if lane.num_rows == lane.size]
    is_taken &= np.isin(num_rows, cuts.sizes)
    return FreshLanes(is_taken=is_taken, batches=_batches_in_place(whole, cuts)) if whole else None


def shapes_of(lanes: FreshLanes) -> set[Shape]:
    """The shapes of its batches."""
    return {Shape(batch.num_lanes, batch.size, lanes.num_behind > 0) for batch in lanes.batches}


def num_fresh_rows(lanes: FreshLanes) -> int:
    """Rows of the step that are theirs."""
    return sum(run.num_lanes * run.num_rows for batch in lanes.batches for run in batch.runs)


def _batches_in_place(lanes: Sequence[_Lane], cuts: Cuts) -> tuple[Batch, ...]:
    """Each run of lanes of one size, as far as it goes into a batch."""
    batches = []
    for run in _runs(lanes):
        most = cuts.batch_rows // run.num_rows
        for done in range(0, run.num_lanes, most):
            count, first = min(most, run.num_lanes - done), run.first_row + done * run.num_rows
            whole = Run(first_row=first, num_lanes=count, num_rows=run.num_rows, place=0)
            batches.append(Batch(start=first, num_lanes=count, size=run.num_rows, runs=(whole,)))
    return tuple(batches)


def _batches_behind(lanes: Sequence[_Lane], cuts: Cuts, num_rows: int, is_taken: npt.NDArray[np.bool_]) -> FreshLanes:
    """Lanes of one size together, each in rows of its own behind the step's."""
    targets = np.arange(num_rows)
    batches: list[Batch] = []
    start = 0
    for size, alike in groupby(sorted(lanes, key=lambda lane: (-lane.size, lane.first_row)), lambda lane: lane.size):
        those, most = list(alike), max(1, cuts.batch_rows // size)
        for done in range(0, len(those), most):
            part = those[done : done + most]
            batches.append(Batch(start=start, num_lanes=len(part), size=size, runs=tuple(_runs(part))))
            for lane in part:
                target = num_rows + start
                targets[lane.first_row : lane.first_row + lane.num_rows] = np.arange(target, target + lane.num_rows)
                start += size
    return FreshLanes(is_taken=is_taken, batches=tuple(batches), num_behind=start, targets=targets)


def _runs(lanes: Sequence[_Lane]) -> list[Run]:
    """Lanes one behind the other with as many rows each, together."""
    found: list[Run] = []
    for place, lane in enumerate(lanes):
        last = found[-1] if found else None
        if last is not None and (last.first_row + last.num_lanes * last.num_rows, last.num_rows) == (
            lane.first_row,
            lane.num_rows,
        ):
            found[-1] = Run(
                first_row=last.first_row,
                num_lanes=last.num_lanes + 1,
                num_rows=last.num_rows,
                place=last.place,
            )
        else:
            found.append(Run(first_row=lane.first_row, num_lanes=1, num_rows=lane.num_rows, place=place))
    return found
