"""Lanes that attend to themselves alone: which they are, and how they become batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.backend import LaneLayout
from engine.attention.fresh import BATCH_ROWS, SIZES, Batch, Cuts, Run, Shape, fresh_lanes, num_fresh_rows, shapes_of

CUTS = Cuts(sizes=(8, 16, 32), least_filled=6, batch_rows=32, most_filled=99)


def layout_of(lanes: Sequence[tuple[int, int]], masked: frozenset[int] = frozenset()) -> LaneLayout:
    """Lanes given as (rows, context)."""
    starts = [0]
    for rows, _ in lanes:
        starts.append(starts[-1] + rows)
    masks = [
        torch.ones((rows, context), dtype=torch.bool) if at in masked else None
        for at, (rows, context) in enumerate(lanes)
    ]
    return LaneLayout(
        query_starts=starts,
        context_lens=[context for _, context in lanes],
        block_tables=[[0]] * len(lanes),
        slots=torch.zeros(starts[-1], dtype=torch.int64),
        masks=masks if masked else (),
    )


def test_lanes_that_fill_their_size_are_batches_as_they_lie() -> None:
    found = fresh_lanes(layout_of([(1, 9), (8, 8), (8, 8), (16, 16), (8, 8)]), CUTS)

    assert found is not None
    assert found.is_taken.tolist() == [False, True, True, True, True]
    assert found.num_behind == 0
    assert found.batches == (
        Batch(start=1, num_lanes=2, size=8, runs=(Run(first_row=1, num_lanes=2, num_rows=8, place=0),)),
        Batch(start=17, num_lanes=1, size=16, runs=(Run(first_row=17, num_lanes=1, num_rows=16, place=0),)),
        Batch(start=33, num_lanes=1, size=8, runs=(Run(first_row=33, num_lanes=1, num_rows=8, place=0),)),
    )
    assert num_fresh_rows(found) == 40


def test_one_that_does_not_fill_its_size_puts_all_behind_the_step() -> None:
    found = fresh_lanes(layout_of([(7, 7), (16, 16), (7, 7), (2, 9), (8, 8)]), CUTS)

    assert found is not None
    assert found.num_behind == 16 + 3 * 8
    large, small = found.batches
    assert large == Batch(start=0, num_lanes=1, size=16, runs=(Run(first_row=7, num_lanes=1, num_rows=16, place=0),))
    assert (small.start, small.num_lanes, small.size, small.stop) == (16, 3, 8, 40)
    assert [(run.first_row, run.num_rows, run.place) for run in small.runs] == [(0, 7, 0), (23, 7, 1), (32, 8, 2)]
    expected = np.concatenate(
        (np.arange(56, 63), np.arange(40, 56), np.arange(64, 71), np.arange(30, 32), np.arange(72, 80))
    )
    assert found.targets.tolist() == expected.tolist()


def test_neighbours_of_one_length_are_put_back_together() -> None:
    found = fresh_lanes(layout_of([(7, 7), (7, 7), (6, 6)]), CUTS)

    assert found is not None
    assert found.batches[0].runs == (
        Run(first_row=0, num_lanes=2, num_rows=7, place=0),
        Run(first_row=14, num_lanes=1, num_rows=6, place=2),
    )


def test_batches_have_bounded_rows() -> None:
    in_place = fresh_lanes(layout_of([(8, 8)] * 9), CUTS)
    behind = fresh_lanes(layout_of([(7, 7)] * 9), CUTS)

    assert in_place is not None
    assert [(batch.start, batch.num_lanes) for batch in in_place.batches] == [(0, 4), (32, 4), (64, 1)]
    assert [batch.runs[0].first_row for batch in in_place.batches] == [0, 32, 64]
    assert behind is not None
    assert [(batch.start, batch.num_lanes) for batch in behind.batches] == [(0, 4), (32, 4), (64, 1)]


def test_other_lanes_are_left() -> None:
    lanes = [(8, 9), (5, 5), (33, 33), (8, 8), (0, 0)]

    assert fresh_lanes(layout_of(lanes, masked=frozenset({3})), CUTS) is None
    taken = fresh_lanes(layout_of(lanes), CUTS)
    assert taken is not None
    assert np.flatnonzero(taken.is_taken).tolist() == [3]


def test_short_lanes_are_taken_where_they_need_no_filling() -> None:
    cuts = Cuts(sizes=(8, 16, 32), least_filled=12, batch_rows=32)

    found = fresh_lanes(layout_of([(8, 8), (9, 9), (8, 8), (12, 12)]), cuts)

    assert found is not None
    assert found.is_taken.tolist() == [True, False, True, True]
    assert shapes_of(found) == {Shape(1, 16, True), Shape(2, 8, True)}
    in_place = fresh_lanes(layout_of([(8, 8), (9, 9), (8, 8)]), cuts)
    assert in_place is not None
    assert shapes_of(in_place) == {Shape(1, 8, False)}


def test_lanes_of_many_sizes_are_not_filled_up() -> None:
    few = Cuts(sizes=(8, 16, 32), least_filled=6, batch_rows=64, most_filled=2)

    both = fresh_lanes(layout_of([(7, 7), (15, 15), (7, 7)]), few)
    whole = fresh_lanes(layout_of([(7, 7), (15, 15), (16, 16), (31, 31)]), few)

    assert both is not None
    assert both.is_taken.tolist() == [True, True, True]
    assert whole is not None
    assert whole.is_taken.tolist() == [False, False, True, False]
    assert shapes_of(whole) == {Shape(1, 16, False)}
    assert fresh_lanes(layout_of([(7, 7), (15, 15), (31, 31)]), few) is None


def test_lanes_longer_than_a_window_are_left() -> None:
    found = fresh_lanes(layout_of([(8, 8), (16, 16)]), CUTS, longest=8)

    assert found is not None
    assert found.is_taken.tolist() == [True, False]


def test_there_are_few_shapes() -> None:
    """Each is prepared once, and kept."""
    assert list(SIZES) == sorted(set(SIZES))
    assert SIZES[-1] == BATCH_ROWS
    assert sum(BATCH_ROWS // size for size in SIZES) < 150


@given(
    lanes=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 3])).map(lambda lane: (lane[0], sum(lane))),
        min_size=1,
        max_size=12,
    )
)
def test_every_fresh_row_is_in_one_batch_and_comes_back(lanes: list[tuple[int, int]]) -> None:
    layout = layout_of(lanes)
    found = fresh_lanes(layout, CUTS)
    wanted = [rows == context and 6 <= rows <= 32 for rows, context in lanes]
    if not any(wanted):
        assert found is None
        return
    assert found is not None
    assert found.is_taken.tolist() == wanted
    num_rows = layout.query_starts[-1]
    dense = np.full(found.num_behind or num_rows, -1)
    rows = np.arange(num_rows)
    if found.num_behind:
        behind = found.targets >= num_rows
        assert (found.targets[~behind] == rows[~behind]).all()
        dense[found.targets[behind] - num_rows] = rows[behind]
    else:
        dense[:] = rows
    back: list[int] = []
    for batch in found.batches:
        assert batch.num_lanes * batch.size <= 32
        assert batch.size in CUTS.sizes
        for run in batch.runs:
            for lane in range(run.num_lanes):
                first = batch.start + (run.place + lane) * batch.size
                held = dense[first : first + run.num_rows].tolist()
                start = run.first_row + lane * run.num_rows
                assert held == list(range(start, start + run.num_rows))
                back += held
    starts = layout.query_starts
    fresh = [row for at, is_fresh in enumerate(wanted) if is_fresh for row in range(starts[at], starts[at + 1])]
    assert sorted(back) == fresh
