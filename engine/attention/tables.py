"""The lanes of a step as flat arrays, for kernels that take one call a step.

Letters: L lanes, N pages of all lanes together.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int32]


class LaneTables(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where each lane's tokens lie; contiguous arrays on the host that nobody changes.

    Attributes:
        query_starts: [L + 1] int32, lane i owns rows query_starts[i]:query_starts[i + 1] of the step.
        context_lens: [L] int32, tokens visible to the lane's last row, its own new ones included.
        table_starts: [L + 1] int32, lane i's pages are pages[table_starts[i]:table_starts[i + 1]].
        pages: [N] int32, by lane, then by position.
    """

    query_starts: Counts
    context_lens: Counts
    table_starts: Counts
    pages: Counts


def flatten(
    query_starts: Sequence[int], context_lens: Sequence[int], block_tables: Sequence[Sequence[int]]
) -> LaneTables:
    """Lays out lists as arrays; page lists that are arrays of C ints already are joined without a look at the pages.

    Args:
        query_starts: L + 1 offsets.
        context_lens: L lengths.
        block_tables: L page lists.
    """
    tables = [table if isinstance(table, array) else array("i", table) for table in block_tables]
    return LaneTables(
        np.array(query_starts, dtype=np.int32),
        np.array(context_lens, dtype=np.int32),
        np.array(list(accumulate(map(len, tables), initial=0)), dtype=np.int32),
        np.frombuffer(b"".join(tables), dtype=np.int32),
    )
