"""Lanes as flat arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from engine.attention.backend import LaneLayout


@pytest.mark.parametrize("tables", [[[5, 6, 9], [], [2]], [[7]], []])
def test_flat_tables_say_what_the_lists_say(tables: list[list[int]]) -> None:
    starts = list(range(0, 2 * len(tables) + 1, 2))
    layout = LaneLayout(
        query_starts=starts,
        context_lens=[3 * len(table) for table in tables],
        block_tables=tables,
        slots=torch.empty(0, dtype=torch.int64),
    )
    flat = layout.tables
    assert flat.query_starts.tolist() == starts
    assert flat.context_lens.tolist() == [3 * len(table) for table in tables]
    bounds = flat.table_starts.tolist()
    assert [flat.pages[first:last].tolist() for first, last in itertools.pairwise(bounds)] == tables
    for array in (flat.query_starts, flat.context_lens, flat.table_starts, flat.pages):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
