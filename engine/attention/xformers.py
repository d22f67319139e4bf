"""Attention on NVIDIA GPUs by xformers: its split-K kernel for decoding lanes, and for all else cut into such lanes.

The kernel takes lanes of equally many rows, 16 at most, and a window only where a lane has one row. So a prefill is cut
into blocks of 16 rows, each a lane with a shorter context, and with a window every row is a lane. That is right for any
step and fast for decoding; prefills are several times slower than by kernels made for them.

Letters: T tokens, L lanes, B lanes after cutting, n rows of each, S page_size, W pages of the longest lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from engine.attention.backend import LaneLayout
from engine.attention.page_lists import Numbers, PageLists, take_lanes
from engine.attention.sdpa import lane_slots
from engine.attention.xformers_library import DTYPES, HEAD_DIMS, LEAST_PAGE, MAX_ROWS, PagedLanes, SplitK, XFormers
from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Group:
    """Lanes of equally many rows, attended to in one call.

    Attributes:
        rows: [B * n] int64, their rows in the step; None if these are all of the step, in order.
        fresh: int64, which of those rows no lane before had too; None if all.
        lanes: For the kernel.
    """

    rows: torch.Tensor | None
    fresh: torch.Tensor | None
    lanes: PagedLanes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MaskedLane:
    """A lane that sees something else than all before it.

    Attributes:
        rows: First and last + 1 of its rows in the step.
        slots: int64, slots of its context.
        mask: [rows, context] bool.
    """

    rows: tuple[int, int]
    slots: torch.Tensor
    mask: torch.Tensor


@dataclass(kw_only=True, slots=True)
class XFormersPlan:
    """One step, cut once a window is known.

    Attributes:
        lists: Lanes without a mask; None if there are none.
        num_rows: T.
        masked: The others.
    """

    lists: PageLists | None
    num_rows: int
    masked: list[MaskedLane]
    by_window: dict[int | None, list[Group]] = field(default_factory=dict)


class XFormersBackend:
    """Attention by xformers; see `AttentionBackend`.

    Raises:
        ModelLoadError: The library is not there, or not the one that this is made for.
    """

    name = "xformers"

    def __init__(self, library: SplitK | None = None) -> None:
        self._library = library or XFormers()

    def prepare(self, storage: KVStorage, num_heads: int, sliding_window: int | None) -> None:
        """Refuses what the kernel does not take.

        Raises:
            ModelLoadError: The heads, the dtype of K and V, or the size of pages.
        """
        if storage.head_dim not in HEAD_DIMS or storage.dtype not in DTYPES:
            raise ModelLoadError(
                f"attention backend 'xformers' takes heads of {', '.join(map(str, HEAD_DIMS))} numbers in bfloat16 "
                f"or float16, not of {storage.head_dim} in {str(storage.dtype).removeprefix('torch.')}"
            )
        if storage.page_size % LEAST_PAGE:
            raise ModelLoadError(
                f"attention backend 'xformers' takes pages of {LEAST_PAGE} tokens or a multiple, "
                f"not of {storage.page_size}"
            )

    def plan(self, layout: LaneLayout, storage: KVStorage) -> XFormersPlan:
        """Sorts lanes by whether they have a mask; the others are cut at the first layer, which knows the window."""
        tables, device = layout.tables, storage.device
        has_rows = np.diff(tables.query_starts) > 0
        masked = []
        for lane, mask in enumerate(layout.masks):
            if mask is not None and has_rows[lane]:
                has_rows[lane] = False
                slots = lane_slots(layout.block_tables[lane], layout.context_lens[lane], storage.page_size)
                rows = int(tables.query_starts[lane]), int(tables.query_starts[lane + 1])
                masked.append(MaskedLane(rows=rows, slots=torch.from_numpy(slots).to(device), mask=mask.to(device)))
        plain: Numbers = np.flatnonzero(has_rows)
        lists = take_lanes(tables, plain, storage.page_size) if len(plain) else None
        return XFormersPlan(lists=lists, num_rows=int(tables.query_starts[-1]), masked=masked)

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: XFormersPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`."""
        if sliding_window not in plan.by_window:
            lists = plan.lists
            groups = [] if lists is None else _cut(lists, plan.num_rows, sliding_window, storage.device)
            plan.by_window[sliding_window] = groups
        groups = plan.by_window[sliding_window]
        grouped = query.view(len(query), storage.num_kv_heads, -1, storage.head_dim)
        output = torch.empty(grouped.shape, dtype=query.dtype, device=query.device)
        for group in groups:
            if group.rows is None:
                attended = self._library.attend(grouped, storage.layers[layer], group.lanes, scale)
                return attended.view(query.shape)
            rows = grouped.index_select(0, group.rows)
            attended = self._library.attend(rows, storage.layers[layer], group.lanes, scale)
            if group.fresh is None:
                output.index_copy_(0, group.rows, attended)
            else:
                output.index_copy_(0, group.rows[group.fresh], attended[group.fresh])
        for lane in plan.masked:
            first, last = lane.rows
            kv = storage.slots(layer).index_select(1, lane.slots)
            output[first:last] = self._library.attend_masked(grouped[first:last], kv, lane.mask, scale)
        return output.view(query.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """Lanes of n rows, on the host.

    Attributes:
        num_rows: n.
        owners: [B] int64, lane that each was cut from.
        first_rows: [B] int64, first row of each, counted among the T rows of all lanes.
        ends: [B] int64, tokens that its last row sees.
        again: [B] int64, how many of its first rows the lane before it has too.
    """

    num_rows: int
    owners: Numbers
    first_rows: Numbers
    ends: Numbers
    again: Numbers


def _cut(lists: PageLists, num_rows: int, window: int | None, device: torch.device) -> list[Group]:
    """Cuts lanes into groups on the device.

    Args:
        lists: The lanes.
        num_rows: T, rows of masked lanes included.
        window: Positions a row sees back, itself included.
        device: Where the groups are wanted.
    """
    counts, contexts = np.diff(lists.query_starts).astype(np.int64), lists.context_lens.astype(np.int64)
    width = int(np.diff(lists.page_starts).max())
    tables = np.zeros((lists.num_lanes, width), dtype=np.int32)
    tables[np.arange(width) < np.diff(lists.page_starts)[:, None]] = lists.pages
    first, last = lists.rows if isinstance(lists.rows, tuple) else (0, 0)
    rows = np.arange(first, last) if isinstance(lists.rows, tuple) else lists.rows
    groups = []
    for cut in _rows_alone(counts, contexts, lists) if window is not None else _blocks(counts, contexts, lists):
        own = cut.first_rows[:, None] + np.arange(cut.num_rows)
        is_all = own.size == num_rows and bool((rows[own.reshape(-1)] == np.arange(num_rows)).all())
        fresh = np.flatnonzero(np.arange(cut.num_rows) >= cut.again[:, None]) if cut.again.any() else None
        starts = None if window is None else np.append(np.maximum(cut.ends - window, 0), 0)
        groups.append(
            Group(
                rows=None if is_all else _send(rows[own.reshape(-1)], device),
                fresh=None if fresh is None else _send(fresh, device),
                lanes=PagedLanes(
                    num_rows=cut.num_rows,
                    query_starts=_send(np.arange(len(own) + 1, dtype=np.int32) * np.int32(cut.num_rows), device),
                    starts=None if starts is None else _send(starts.astype(np.int32), device),
                    ends=_send(cut.ends.astype(np.int32), device),
                    tables=_send(tables[cut.owners], device),
                ),
            )
        )
    return groups


def _rows_alone(counts: Numbers, contexts: Numbers, lists: PageLists) -> list[_Cut]:
    """Every row a lane."""
    owners = np.repeat(np.arange(len(counts)), counts)
    rows = np.arange(lists.num_rows)
    ends = (contexts - counts)[owners] + rows - lists.query_starts[owners] + 1
    return [_Cut(1, owners, rows, ends, np.zeros_like(rows))]


def _blocks(counts: Numbers, contexts: Numbers, lists: PageLists) -> list[_Cut]:
    """Lanes of few rows as they are, longer ones in blocks; the last block of a lane reaches back to be a full one."""
    cuts = []
    sizes = np.minimum(counts, MAX_ROWS)
    for size in np.unique(sizes):
        lanes = np.flatnonzero(sizes == size)
        num_blocks = -(-counts[lanes] // size)
        owners = np.repeat(lanes, num_blocks)
        blocks = np.arange(num_blocks.sum()) - np.repeat(np.cumsum(num_blocks) - num_blocks, num_blocks)
        ends = np.minimum((blocks + 1) * size, counts[owners])  # counted among the rows of the lane
        cuts.append(
            _Cut(
                int(size),
                owners,
                lists.query_starts[owners] + ends - size,
                contexts[owners] - counts[owners] + ends,
                (blocks + 1) * size - ends,
            )
        )
    return cuts


def _send(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """To the device, without waiting there for what runs."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
