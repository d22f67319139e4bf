"""Some lanes of a step as lists of pages, for kernels that take rows and pages of many lanes end to end.

Letters: L lanes taken, T their rows, N their pages, S page_size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.attention.tables import Counts, LaneTables

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PageLists:
    """Lanes end to end, on the host.

    Attributes:
        rows: First and last + 1 of their rows in the step where these are consecutive, else [T] int64.
        query_starts: [L + 1] int32, lane i owns rows query_starts[i]:query_starts[i + 1] of the T.
        context_lens: [L] int32, tokens visible to the lane's last row, none of them 0.
        page_starts: [L + 1] int32, lane i's pages are pages[page_starts[i]:page_starts[i + 1]], no more than it needs.
        last_page_lens: [L] int32, tokens in each lane's last page.
        pages: [N] int32.
    """

    rows: tuple[int, int] | Numbers
    query_starts: Counts
    context_lens: Counts
    page_starts: Counts
    last_page_lens: Counts
    pages: Counts

    @property
    def num_lanes(self) -> int:
        """L."""
        return len(self.context_lens)

    @property
    def num_rows(self) -> int:
        """T."""
        return int(self.query_starts[-1])


def take_lanes(tables: LaneTables, lanes: Numbers, page_size: int) -> PageLists:
    """Lists the pages of some lanes.

    Args:
        tables: All lanes of the step; a lane may hold pages that its tokens do not reach yet.
        lanes: [L] numbers of lanes that have rows, ascending.
        page_size: S.
    """
    context_lens = tables.context_lens[lanes]
    counts = -(-context_lens // page_size)
    page_starts = _starts(counts)
    if np.array_equal(page_starts, tables.table_starts):  # all lanes, and no page too many
        pages = tables.pages
    else:
        pages = tables.pages[_ranges(tables.table_starts[lanes], counts)]
    first_rows = tables.query_starts[lanes]
    num_rows = tables.query_starts[lanes + 1] - first_rows
    rows: tuple[int, int] | Numbers = (int(first_rows[0]), int(first_rows[-1] + num_rows[-1]))
    if not np.array_equal(first_rows[1:], first_rows[:-1] + num_rows[:-1]):
        rows = _ranges(first_rows, num_rows)
    return PageLists(
        rows=rows,
        query_starts=_starts(num_rows),
        context_lens=context_lens,
        page_starts=page_starts,
        last_page_lens=context_lens - (counts - 1) * np.int32(page_size),
        pages=pages,
    )


def _starts(counts: Counts) -> Counts:
    """[0, counts[0], counts[0] + counts[1], ...]."""
    starts = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def _ranges(firsts: Counts, counts: Counts) -> Numbers:
    """Numbers firsts[i], firsts[i] + 1, ... of each i, counts[i] of them, end to end."""
    starts = _starts(counts)
    return np.repeat(firsts.astype(np.int64) - starts[:-1], counts) + np.arange(starts[-1])
