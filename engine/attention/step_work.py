"""Everything the CPU backend does in one layer of a step, decided once for all layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.backend import LaneLayout
from engine.attention.decode_blocks import DecodeBlock, cut_blocks
from engine.attention.pieces import LaneWork, cut_lane
from engine.kv.storage import KVStorage


@dataclass(kw_only=True, slots=True)
class StepWork:
    """Blocks first, then lanes.

    Attributes:
        blocks: Decode lanes done together.
        lanes: The others that have rows, in their order.
        restore: [T] int64, where in the work's order each row of the step comes; None if the orders agree.
    """

    blocks: list[DecodeBlock]
    lanes: list[LaneWork]
    restore: torch.Tensor | None


def cut_step(layout: LaneLayout, storage: KVStorage, window: int | None) -> StepWork:
    """Decides how each lane is attended to."""
    starts = layout.query_starts
    alone, decode = [], []
    for lane in range(len(layout.context_lens)):
        num_rows = starts[lane + 1] - starts[lane]
        if num_rows == 1 and not (layout.masks and layout.masks[lane] is not None):
            decode.append(lane)
        elif num_rows:
            alone.append(lane)
    blocks, left = cut_blocks(layout, storage, decode, window)
    lanes = [cut_lane(layout, lane, storage.page_size, window, storage.dtype) for lane in sorted(alone + left)]
    return StepWork(blocks=blocks, lanes=lanes, restore=_restore(blocks, lanes))


def _restore(blocks: list[DecodeBlock], lanes: list[LaneWork]) -> torch.Tensor | None:
    if not blocks:
        return None
    rest = [torch.arange(lane.first_row, lane.first_row + lane.num_rows) for lane in lanes]
    order = torch.cat([block.rows for block in blocks] + rest)
    restore = torch.argsort(order)
    return None if torch.equal(restore, torch.arange(len(order))) else restore
