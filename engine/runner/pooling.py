"""Hidden states that embeddings are made of: which rows of a step they are, and their sums.

Letters: Q rows whose hidden state is wanted, E hidden_size.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.request import Pooling
from engine.scheduling.batch import Lane

Sums = dict[int, npt.NDArray[np.float64]]
"""By place in the batch, the sum [E] of the hidden states wanted of that lane."""


class PooledRows(msgspec.Struct, frozen=True, gc=False):
    """Rows of one lane.

    Attributes:
        lane: Its place in the batch.
        first, last: Its rows in the step, last excluded.
    """

    lane: int
    first: int
    last: int


def pooled_rows(lanes: Sequence[Lane], query_starts: Sequence[int]) -> list[PooledRows]:
    """Chooses the rows; query_starts are L + 1 offsets of the lanes' rows."""
    return [
        PooledRows(place, _first(lane, query_starts[place], query_starts[place + 1]), query_starts[place + 1])
        for place, lane in enumerate(lanes)
        if lane.pools
    ]


def row_indices(pooled: Sequence[PooledRows]) -> npt.NDArray[np.int64]:
    """[Q], their places in the step, one lane after the other."""
    return np.concatenate([np.arange(rows.first, rows.last, dtype=np.int64) for rows in pooled])


def sum_states(pooled: Sequence[PooledRows], states: torch.Tensor) -> Sums:
    """Adds up each lane's hidden states [Q, E] in float64, and copies the sums to the host. Waits for the device."""
    parts = torch.split(states, [rows.last - rows.first for rows in pooled])
    return {rows.lane: part.sum(0, dtype=torch.float64).cpu().numpy() for rows, part in zip(pooled, parts, strict=True)}


def _first(lane: Lane, start: int, stop: int) -> int:
    return stop - 1 if lane.sequence.request.pooling is Pooling.LAST else start
