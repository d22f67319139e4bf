"""Blocks of decode lanes with short contexts: gathered into a bounded scratch and attended to in one call.

A flash call for one row costs about as much as reading two hundred tokens; with dozens of lanes and a layer a call
each, calls are what a step consists of. Long contexts are read in place instead.

Letters: B lanes of a block, C longest context among them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.backend import LaneLayout
from engine.attention.sdpa import lane_slots
from engine.kv.storage import KVStorage

_SHORT_SLOTS = 320
"""Contexts up to this length are gathered; on two Zen 4 cores longer ones are faster in place."""

_BLOCK_SLOTS = 8192
"""Slots gathered at a time, padding included."""

_MIN_LANES = 4


@dataclass(kw_only=True, slots=True)
class DecodeBlock:
    """Single-row lanes attended to together.

    Attributes:
        rows: [B] int64, their rows in the step.
        context: C.
        slots: [2 * B * C] int64, rows of the table of all K, then V, slots; padding repeats a lane's own first slot, so
            that no lane's values, a NaN among them, reach another.
        mask: [B, 1, 1, C], 0 or -inf over the padding, in the storage's dtype; None without padding.
    """

    rows: torch.Tensor
    context: int
    slots: torch.Tensor
    mask: torch.Tensor | None

    @property
    def num_lanes(self) -> int:
        """B."""
        return self.rows.shape[0]


def cut_blocks(
    layout: LaneLayout, storage: KVStorage, lanes: list[int], window: int | None
) -> tuple[list[DecodeBlock], list[int]]:
    """Forms blocks of the lanes that profit.

    Args:
        layout: The step.
        storage: K and V.
        lanes: Lanes with a single row and no mask.
        window: Positions a row sees back, itself included.

    Returns:
        The blocks, and the lanes that are in none.
    """

    def visible(lane: int) -> int:
        return min(layout.context_lens[lane], window or layout.context_lens[lane])

    short = sorted((lane for lane in lanes if visible(lane) <= _SHORT_SLOTS), key=visible)
    if len(short) < _MIN_LANES:
        return [], lanes
    blocks, start = [], 0
    for end in range(1, len(short) + 1):
        if end == len(short) or (end + 1 - start) * visible(short[end]) > _BLOCK_SLOTS:
            blocks.append(_block(layout, storage, short[start:end], [visible(lane) for lane in short[start:end]]))
            start = end
    taken = set(short)
    return blocks, [lane for lane in lanes if lane not in taken]


def _block(layout: LaneLayout, storage: KVStorage, lanes: list[int], lengths: list[int]) -> DecodeBlock:
    context = lengths[-1]
    slots = np.empty((2, len(lanes), context), dtype=np.int64)
    for index, (lane, length) in enumerate(zip(lanes, lengths, strict=True)):
        own = lane_slots(layout.block_tables[lane], layout.context_lens[lane], storage.page_size)[-length:]
        slots[0, index, :length], slots[0, index, length:] = own, own[0]
    slots[1] = slots[0] + storage.num_pages * storage.page_size
    mask = None
    if lengths[0] < context:
        padding = torch.arange(context) >= torch.tensor(lengths)[:, None]
        mask = torch.zeros(padding.shape, dtype=storage.dtype).masked_fill_(padding, float("-inf"))[:, None, None]
    return DecodeBlock(
        rows=torch.tensor([layout.query_starts[lane] for lane in lanes]),
        context=context,
        slots=torch.from_numpy(slots.reshape(-1)),
        mask=mask,
    )
