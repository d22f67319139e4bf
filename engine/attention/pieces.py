"""Cuts one lane's attention into pieces that a dense kernel can do in place.

Letters: N rows of the lane, C tokens of its context; positions count from the lane's first token.
A *run* is a stretch of positions whose slots are consecutive. A *piece* is some rows against one run, or against
several short runs that are gathered because a kernel call costs more than copying them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.attention.backend import LaneLayout

_SHORT_SLOTS = 128
"""Runs shorter than this are gathered with their neighbours."""

_GATHER_SLOTS = 1024
"""Slots gathered at a time: bounds the copy whatever the history's length."""


@dataclass(kw_only=True, slots=True)
class Piece:
    """Some rows of a lane against some of its context.

    Attributes:
        first_row, num_rows: Rows, counted within the lane.
        start, length: Slots in place, unless gathered.
        gather: [length] int64, slots to copy together; None reads in place.
        causal: Row i sees the first i + 1 positions; there are as many of both.
        mask: [rows, length], 0 or -inf, in the query's dtype; None lets every row see everything.
        blind: [rows] bool, rows that the mask leaves nothing to see; None if there are none.
    """

    first_row: int
    num_rows: int
    start: int
    length: int
    gather: torch.Tensor | None = None
    causal: bool = False
    mask: torch.Tensor | None = None
    blind: torch.Tensor | None = None


@dataclass(kw_only=True, slots=True)
class LaneWork:
    """What one lane needs.

    Attributes:
        first_row: Its first row in the step.
        num_rows: N.
        only_run: (start, length) if it is a single row against one run, the fast case.
        pieces: Otherwise, all of its pieces.
    """

    first_row: int
    num_rows: int
    only_run: tuple[int, int] | None
    pieces: list[Piece]


@dataclass(slots=True)
class _Stretch:
    """Consecutive positions in consecutive slots, or to be gathered into such."""

    position: int
    length: int
    start: int
    gather: list[tuple[int, int]] | None = None


def cut_lane(layout: LaneLayout, lane: int, page_size: int, window: int | None, dtype: torch.dtype) -> LaneWork:
    """Cuts a lane.

    Args:
        layout: The step.
        lane: Which lane.
        page_size: Of the storage.
        window: Positions a row sees back, itself included; a lane with a mask ignores it.
        dtype: Of masks.
    """
    first_row, end_row = layout.query_starts[lane], layout.query_starts[lane + 1]
    num_rows, context, table = end_row - first_row, layout.context_lens[lane], layout.block_tables[lane]
    mask = layout.masks[lane] if layout.masks else None
    past = context - num_rows
    first = 0 if window is None or mask is not None else max(0, past - window + 1)
    if mask is not None:
        pieces = _masked_pieces(_stretches(table, page_size, [0, context]), mask, dtype)
    elif num_rows == 1:
        stretches = list(_stretches(table, page_size, [first, context]))
        only = stretches[0]
        if len(stretches) == 1 and only.gather is None:
            return LaneWork(first_row=first_row, num_rows=1, only_run=(only.start, only.length), pieces=[])
        pieces = [_piece(stretch, range(1), past, False, window, dtype) for stretch in stretches]
    else:
        # Stretches never cross from past to own tokens, nor from positions that all rows see to those that some do.
        all_see = first if window is None else min(context, max(first, context - window))
        borders = sorted({first, all_see, max(first, past), context})
        pieces = _causal_pieces(_stretches(table, page_size, borders), past, num_rows, window, dtype)
    return LaneWork(first_row=first_row, num_rows=num_rows, only_run=None, pieces=pieces)


def _stretches(table: Sequence[int], page_size: int, borders: list[int]) -> Iterator[_Stretch]:
    """Cuts positions borders[0]..borders[-1] at the borders and wherever slots stop being consecutive."""
    for low, high in itertools.pairwise(borders):
        short: list[_Stretch] = []
        for run in _runs(table, page_size, low, high):
            if run.length < _SHORT_SLOTS and sum(one.length for one in short) + run.length <= _GATHER_SLOTS:
                short.append(run)
                continue
            yield from _together(short)
            short = [run] if run.length < _SHORT_SLOTS else []
            if not short:
                yield run
        yield from _together(short)


def _runs(table: Sequence[int], page_size: int, low: int, high: int) -> Iterator[_Stretch]:
    """Cuts positions low..high-1 into runs of consecutive slots."""
    position = low
    while position < high:
        page = index = position // page_size
        while (page + 1) * page_size < high and table[page + 1] == table[page] + 1:
            page += 1
        end = min(high, (page + 1) * page_size)
        yield _Stretch(position, end - position, table[index] * page_size + position % page_size)
        position = end


def _together(short: list[_Stretch]) -> Iterator[_Stretch]:
    if len(short) == 1:
        yield short[0]
    elif short:
        length = sum(run.length for run in short)
        yield _Stretch(short[0].position, length, 0, [(run.start, run.length) for run in short])


def _causal_pieces(
    stretches: Iterator[_Stretch], past: int, num_rows: int, window: int | None, dtype: torch.dtype
) -> list[Piece]:
    """Pairs each stretch with the rows that see it: those within it, causally, and those after it, wholly."""
    pieces = []
    for stretch in stretches:
        end = stretch.position + stretch.length
        last = num_rows if window is None else min(num_rows, end + window - 1 - past)
        within = range(max(0, stretch.position - past), max(0, min(end - past, last)))
        after = range(max(0, end - past), last)
        for rows, causal in ((within, True), (after, False)):
            if len(rows):
                pieces.append(_piece(stretch, rows, past, causal, window, dtype))
    return pieces


def _piece(stretch: _Stretch, rows: range, past: int, causal: bool, window: int | None, dtype: torch.dtype) -> Piece:
    piece = Piece(
        first_row=rows.start,
        num_rows=len(rows),
        start=stretch.start,
        length=stretch.length,
        gather=_gather(stretch),
        causal=causal,
    )
    if window is not None and past + rows[-1] - stretch.position >= window:
        positions = torch.arange(past + rows.start, past + rows.stop)
        distance = positions[:, None] - torch.arange(stretch.position, stretch.position + stretch.length)
        piece.causal = False
        _set_mask(piece, (distance >= 0) & (distance < window), dtype)
    return piece


def _masked_pieces(stretches: Iterator[_Stretch], mask: torch.Tensor, dtype: torch.dtype) -> list[Piece]:
    pieces = []
    for stretch in stretches:
        piece = Piece(
            first_row=0,
            num_rows=mask.shape[0],
            start=stretch.start,
            length=stretch.length,
            gather=_gather(stretch),
        )
        _set_mask(piece, mask[:, stretch.position : stretch.position + stretch.length], dtype)
        pieces.append(piece)
    return pieces


def _set_mask(piece: Piece, visible: torch.Tensor, dtype: torch.dtype) -> None:
    if visible.all():
        return
    piece.mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
    blind = ~visible.any(dim=1)
    piece.blind = blind if blind.any() else None


def _gather(stretch: _Stretch) -> torch.Tensor | None:
    if stretch.gather is None:
        return None
    return torch.cat([torch.arange(start, start + length) for start, length in stretch.gather])
