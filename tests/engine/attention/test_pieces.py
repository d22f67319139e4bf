"""Pieces of a lane cover each pair of row and visible position once, and copy no more than they must."""

from __future__ import annotations

from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.backend import LaneLayout
from engine.attention.pieces import LaneWork, Piece, cut_lane

GARBAGE = 999


def layout_of(num_rows: int, context: int, table: list[int]) -> LaneLayout:
    return LaneLayout(
        query_starts=[5, 5 + num_rows], context_lens=[context], block_tables=[table], slots=torch.empty(0)
    )


def slots_of(piece: Piece) -> list[int]:
    return list(range(piece.start, piece.start + piece.length)) if piece.gather is None else piece.gather.tolist()


def pairs(work: LaneWork) -> list[tuple[int, int]]:
    """Every (row, slot) the pieces attend to."""
    if work.only_run is not None:
        start, length = work.only_run
        return [(0, slot) for slot in range(start, start + length)]
    found = []
    for piece in work.pieces:
        slots = slots_of(piece)
        assert len(slots) == piece.length
        for row in range(piece.num_rows):
            seen = slots
            if piece.causal:
                assert piece.num_rows == piece.length
                seen = slots[: row + 1]
            if piece.mask is not None:
                seen = [slot for slot, score in zip(slots, piece.mask[row].tolist(), strict=True) if score == 0]
                assert (not seen) == bool(piece.blind is not None and piece.blind[row])
            found += [(piece.first_row + row, slot) for slot in seen]
    return found


@given(
    num_rows=st.integers(1, 60),
    past=st.integers(0, 300),
    page_size=st.sampled_from([1, 4, 16]),
    window=st.none() | st.integers(1, 400),
    random=st.randoms(use_true_random=False),
    contiguous=st.booleans(),
)
def test_each_visible_pair_is_covered_once(
    num_rows: int, past: int, page_size: int, window: int | None, random: Random, contiguous: bool
) -> None:
    context = past + num_rows
    table = list(range(100, 100 + -(-context // page_size)))
    if not contiguous:
        random.shuffle(table)
    work = cut_lane(layout_of(num_rows, context, [*table, GARBAGE]), 0, page_size, window, torch.float32)
    expected = [
        (row, table[position // page_size] * page_size + position % page_size)
        for row in range(num_rows)
        for position in range(context)
        if position <= past + row and past + row - position < (window or context)
    ]
    found = pairs(work)
    assert len(found) == len(set(found))
    assert set(found) == set(expected)
    assert (work.first_row, work.num_rows) == (5, num_rows)


def test_a_decode_lane_on_consecutive_pages_reads_in_place() -> None:
    work = cut_lane(layout_of(1, 1000, list(range(7, 70))), 0, 16, None, torch.float32)
    assert work.only_run == (7 * 16, 1000)
    work = cut_lane(layout_of(1, 1000, list(range(7, 70))), 0, 16, 100, torch.float32)
    assert work.only_run == (7 * 16 + 900, 100)


def test_a_chunk_on_consecutive_pages_needs_no_mask_and_no_copy() -> None:
    work = cut_lane(layout_of(512, 2048, list(range(128))), 0, 16, None, torch.float32)
    assert [(piece.causal, piece.mask, piece.gather) for piece in work.pieces] == [
        (False, None, None),
        (True, None, None),
    ]


def test_copies_of_a_scattered_history_stay_bounded() -> None:
    table = [page * 2 for page in range(4096)]
    work = cut_lane(layout_of(1, 4096 * 16, table), 0, 16, None, torch.float32)
    assert len(work.pieces) == 64
    assert max(piece.length for piece in work.pieces) == 1024


def test_long_runs_between_scattered_pages_are_read_in_place() -> None:
    table = [9, 3, *range(20, 40), 1, 5]
    work = cut_lane(layout_of(1, len(table) * 16, table), 0, 16, None, torch.float32)
    assert [piece.gather is None for piece in work.pieces] == [False, True, False]


def test_a_mask_straddles_only_the_edge_of_the_window() -> None:
    work = cut_lane(layout_of(32, 1000, list(range(63))), 0, 16, 500, torch.float32)
    masked = [piece for piece in work.pieces if piece.mask is not None]
    assert sum(piece.length for piece in masked) <= 32
