"""The reference backend: gathers each lane's K and V and calls torch's own attention. Any device, any mask.

Letters: B lanes of one group, N rows of each, C longest context among them, T tokens, H query heads, G key/value
heads, D head_dim, S page_size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from engine.attention.backend import LaneLayout
from engine.kv.storage import KVStorage

_GATHER_SLOTS = 1 << 17
"""Slots gathered at a time, padding included: bounds the copies of K and V."""


@dataclass(kw_only=True, slots=True)
class LaneGroup:
    """Lanes with equally many rows, attended to in one call.

    Attributes:
        rows: [B * N] int64, their rows in the step.
        slots: [B * C] int64, slots of their contexts; padding repeats a lane's own first slot, so that
            no lane's values, a NaN among them, reach another.
        visible: [B, 1, N, C] bool, without the window.
        distance: [B, 1, N, C] int64, how far back each context position lies; None where a mask says everything.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    visible: torch.Tensor
    distance: torch.Tensor | None
    by_window: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None) -> torch.Tensor:
        """What each row sees, [B, 1, N, C] bool; built once a step."""
        if window not in self.by_window:
            mask = self.visible
            if window is not None and self.distance is not None:
                mask = mask & (self.distance < window)
            self.by_window[window] = mask
        return self.by_window[window]


class SdpaBackend:
    """Attention by gathering; see `AttentionBackend`."""

    name = "sdpa"

    def plan(self, layout: LaneLayout, storage: KVStorage) -> list[LaneGroup]:
        """Groups lanes by their number of rows; lanes with a mask stand alone."""
        masks = layout.masks or [None] * len(layout.context_lens)
        groups = [_masked_group(layout, storage, lane, mask) for lane, mask in enumerate(masks) if mask is not None]
        plain = [lane for lane, mask in enumerate(masks) if mask is None]
        return groups + [_causal_group(layout, storage, lanes) for lanes in _batches(layout, plain)]

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: list[LaneGroup],
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`."""
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in plan:
            num_lanes, _, num_rows, context = group.visible.shape
            gathered = storage.gather(layer, group.slots)
            keys, values = gathered.view(2, num_lanes, context, *gathered.shape[2:])
            rows = query.index_select(0, group.rows)
            attended = functional.scaled_dot_product_attention(
                rows.view(num_lanes, num_rows, *rows.shape[1:]).transpose(1, 2),
                keys.transpose(1, 2),
                values.transpose(1, 2),
                attn_mask=group.mask(sliding_window),
                scale=scale,
                enable_gqa=True,
            )
            output.index_copy_(0, group.rows, attended.transpose(1, 2).flatten(0, 1))
        return output


def lane_slots(table: Sequence[int], length: int, page_size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Slots of a lane's first `length` positions, [length] int64."""
    pages = np.asarray(table[: -(-length // page_size)], dtype=np.int64)
    return (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)[:length]


def _batches(layout: LaneLayout, lanes: list[int]) -> Iterator[list[int]]:
    """Cuts lanes into groups of equal rows whose padded contexts stay within the bound."""

    def num_rows(lane: int) -> int:
        return layout.query_starts[lane + 1] - layout.query_starts[lane]

    batch: list[int] = []
    for lane in sorted(lanes, key=lambda lane: (num_rows(lane), layout.context_lens[lane])):
        padded = (len(batch) + 1) * layout.context_lens[lane]
        if batch and (num_rows(batch[0]) != num_rows(lane) or padded > _GATHER_SLOTS):
            yield batch
            batch = []
        if num_rows(lane):
            batch.append(lane)
    if batch:
        yield batch


def _causal_group(layout: LaneLayout, storage: KVStorage, lanes: list[int]) -> LaneGroup:
    device = layout.slots.device
    starts = np.asarray([layout.query_starts[lane] for lane in lanes])
    num_rows = layout.query_starts[lanes[0] + 1] - layout.query_starts[lanes[0]]
    lengths = np.asarray([layout.context_lens[lane] for lane in lanes])
    slots = np.empty((len(lanes), int(lengths.max())), dtype=np.int64)
    for index, lane in enumerate(lanes):
        own = lane_slots(layout.block_tables[lane], int(lengths[index]), storage.page_size)
        slots[index, : len(own)], slots[index, len(own) :] = own, own[0]
    positions = (lengths - num_rows)[:, None] + np.arange(num_rows)
    distance = torch.from_numpy(positions[:, None, :, None] - np.arange(slots.shape[1])).to(device)
    return LaneGroup(
        rows=torch.from_numpy((starts[:, None] + np.arange(num_rows)).reshape(-1)).to(device),
        slots=torch.from_numpy(slots.reshape(-1)).to(device),
        visible=distance >= 0,
        distance=distance,
    )


def _masked_group(layout: LaneLayout, storage: KVStorage, lane: int, mask: torch.Tensor) -> LaneGroup:
    device = layout.slots.device
    slots = lane_slots(layout.block_tables[lane], layout.context_lens[lane], storage.page_size)
    return LaneGroup(
        rows=torch.arange(layout.query_starts[lane], layout.query_starts[lane + 1], device=device),
        slots=torch.from_numpy(slots).to(device),
        visible=mask.to(device)[None, None],
        distance=None,
    )
