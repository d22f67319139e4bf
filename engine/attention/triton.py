"""Paged attention by kernels of our own for NVIDIA GPUs, for any mix of lanes.

Lanes are sorted into launches by what suits them: single tokens, a few tokens, and many; those with a mask apart. What
is computed by whom is worked out once a step and goes to the device in one copy, for which nobody waits.

Letters: T tokens, H query heads, G key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.backend import LaneLayout
from engine.attention.pieces_of_work import Cut, CutLanes, cut_pieces
from engine.attention.tables import Counts
from engine.cuda.kernels.codes import KVCodes
from engine.cuda.kernels.paged_attention import MOST_PARTS, Pieces, TileConfig, paged_attention
from engine.cuda.kernels.shared_memory import fitting_tiles, shared_bytes
from engine.kv.storage import KVStorage

LaneMarks = npt.NDArray[np.bool_]

PROGRAMS_PER_PROCESSOR = 2

_LEAST_PART_TOKENS = 256
"""A part shorter than this costs more than it saves."""

_FEW_ROWS = 64
"""Rows of queries up to which a lane gets a small tile."""

_OTHER_BYTES = 2048
"""Shared memory of a program beside its tiles."""

_FEW_TILES = (
    TileConfig(rows=_FEW_ROWS, block=64),
    TileConfig(rows=_FEW_ROWS, block=64, num_stages=1),
    TileConfig(rows=_FEW_ROWS, block=32, num_stages=1),
)

_TILES = (
    TileConfig(rows=128, block=128, num_warps=8),
    TileConfig(rows=128, block=64, num_warps=8),
    *_FEW_TILES,
)
"""Tiles of lanes of many tokens, the fastest first; the first that fits is taken."""

_CODE_TILES = (TileConfig(rows=128, block=64, num_warps=8), *_FEW_TILES)
"""The same where K and V are codes, which take registers on their way."""

_EXACT_TILES = (TileConfig(rows=64, block=32, num_stages=1), TileConfig(rows=32, block=32, num_stages=1))
"""Tiles of float32, which no tensor core takes."""

_ALIGNMENT = 4
"""Numbers to which parts of the upload are aligned, so that kernels may take 16 bytes at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One launch of the kernel in each layer."""

    pieces: Pieces
    config: TileConfig


@dataclass(kw_only=True, slots=True)
class TritonPlan:
    """One step; cut at the first layer, which alone knows how many heads share keys.

    Attributes:
        layout: The step.
        storage: K and V, for its shape and dtype.
        left_out: [L] bool, lanes that others attend to; None for none.
        launches: Launches of each layer, once they are known.
        counters: [any] int32 zeros on the device, between kernels.
    """

    layout: LaneLayout
    storage: KVStorage
    left_out: LaneMarks | None = None
    launches: list[Launch] = field(default_factory=list)
    counters: torch.Tensor | None = None


class TritonBackend:
    """Attention by Triton kernels; see `AttentionBackend`."""

    name = "triton"

    def prepare(self, storage: KVStorage, num_heads: int, sliding_window: int | None) -> None:
        """Compiles the kernels of steps without masks, by running each on tokens of one page."""
        if storage.device.type != "cuda":
            return
        share = num_heads // storage.num_kv_heads
        many = 2 * PROGRAMS_PER_PROCESSOR * num_processors(storage.device)
        for num_lanes, rows in ((1, 1), (many, 1), (1, 2), (1, _FEW_ROWS // share + 2)):
            slots = torch.empty(0, dtype=torch.int64, device=storage.device)
            layout = LaneLayout(
                query_starts=range(0, num_lanes * rows + 1, rows),
                context_lens=[rows] * num_lanes,
                block_tables=[[0] * -(-rows // storage.page_size)] * num_lanes,
                slots=slots,
            )
            shape = (num_lanes * rows, num_heads, storage.head_dim)
            query = torch.zeros(shape, dtype=storage.read_dtype, device=storage.device)
            plan = self.plan(layout, storage)
            self.run(0, query, storage, plan, scale=1.0, sliding_window=sliding_window)

    def plan(self, layout: LaneLayout, storage: KVStorage, left_out: LaneMarks | None = None) -> TritonPlan:
        """Notes the step, and which lanes [L] of it are others'."""
        return TritonPlan(layout=layout, storage=storage, left_out=left_out)

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: TritonPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`. Rows of lanes that are left out hold nothing."""
        if query.stride()[1:] != (storage.head_dim, 1):
            query = query.contiguous()
        if plan.counters is None:
            _prepare(plan, query.shape[1] // storage.num_kv_heads)
        assert plan.counters is not None
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for launch in plan.launches:
            paged_attention(
                query,
                storage.layers[layer],
                launch.pieces,
                plan.counters,
                scale,
                sliding_window,
                output,
                config=launch.config,
                codes=KVCodes.of(storage, layer),
            )
        return output


def num_processors(device: torch.device) -> int:
    """Of a device."""
    if device.type != "cuda":
        return 4  # interpreted, one program after the other
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True, kw_only=True, slots=True)
class CutLaunch:
    """Some lanes of a step, cut into pieces.

    Attributes:
        size: 1 for lanes of one token, 2 for a few tokens, 3 for many.
        cut: Their pieces.
        config: How programs are cut.
        is_masked: They have masks.
    """

    size: int
    cut: CutLanes
    config: TileConfig
    is_masked: bool


def lane_sizes(rows: Counts, share: int) -> Counts:
    """[L], the kind of each lane: 1 for lanes of one token, 2 for a few tokens, 3 for many, 0 for none.

    Args:
        rows: [L], tokens of each.
        share: Query heads that share a key/value head.
    """
    return np.select([rows < 1, rows == 1, rows * share <= _FEW_ROWS], [0, 1, 2], default=3).astype(np.int32)


def cut_step(
    layout: LaneLayout,
    storage: KVStorage,
    share: int,
    left_out: LaneMarks | None = None,
    configs: Mapping[int, TileConfig] | None = None,
) -> list[CutLaunch]:
    """Sorts lanes into launches, and cuts them.

    Args:
        layout: The step.
        storage: K and V, for its shape and dtype.
        share: Query heads that share a key/value head.
        left_out: [L] bool, lanes that others attend to; None for none.
        configs: Tiles by size, instead of what is fast.
    """
    tables, processors = layout.tables, num_processors(storage.device)
    rows = tables.query_starts[1:] - tables.query_starts[:-1]
    if left_out is not None:
        rows = np.where(left_out, 0, rows)
    masks = layout.masks or [None] * len(rows)
    masked = np.array([mask is not None for mask in masks], dtype=bool)
    mask_starts = np.cumsum([0] + [0 if mask is None else mask.numel() for mask in masks])[:-1]
    sizes = lane_sizes(rows, share)
    found = []
    for is_masked in (False, True):
        for size in (1, 2, 3):
            lanes = np.flatnonzero((sizes == size) & (masked == is_masked)).astype(np.int32)
            if len(lanes):
                config = configs[size] if configs else tile_config(size, len(lanes), share, storage, processors)
                cut = cut_of(config, share, storage, processors, causal=not is_masked)
                starts = mask_starts[lanes] if is_masked else np.zeros(len(lanes), dtype=np.int64)
                pieces = cut_pieces(tables, lanes, starts, cut)
                found.append(CutLaunch(size=size, cut=pieces, config=config, is_masked=is_masked))
    return found


def _prepare(plan: TritonPlan, share: int) -> None:
    """Cuts the step and sends what is needed to the device."""
    layout, storage = plan.layout, plan.storage
    device = storage.device
    found = cut_step(layout, storage, share, plan.left_out)
    uploaded = _upload([layout.tables.pages, *(one.cut.fields.reshape(-1) for one in found)], device)
    flat_masks = _flat_masks(layout.masks, device) if any(one.is_masked for one in found) else None
    for fields, one in zip(uploaded[1:], found, strict=True):
        pieces = Pieces(
            fields=fields.view(one.cut.fields.shape),
            pages=uploaded[0],
            masks=flat_masks if one.is_masked else None,
            num_parts=one.cut.num_parts,
            num_results=one.cut.num_results,
        )
        plan.launches.append(Launch(pieces=pieces, config=one.config))
    most = max((one.cut.num_results for one in found), default=0)
    plan.counters = torch.zeros(most * storage.num_kv_heads, dtype=torch.int32, device=device)


def tile_config(size: int, num_lanes: int, share: int, storage: KVStorage, processors: int) -> TileConfig:
    """Chooses a tile.

    Args:
        size: 1 for lanes of one token, 2 for a few tokens, 3 for many.
        num_lanes: How many there are of the kind.
        share: Query heads that share a key/value head.
        storage: K and V, for its shape and dtype.
        processors: Of the device.
    """
    row_bytes = max(16, _power(storage.head_dim)) * storage.read_dtype.itemsize  # codes are multiplied as such
    if size == 1:
        pairs = storage.num_kv_heads % 2 == 0 and share <= 8
        heads = 2 if pairs and num_lanes * storage.num_kv_heads >= 2 * PROGRAMS_PER_PROCESSOR * processors else 1
        columns, num_stages = fitting_tiles(64, row_bytes, 3, storage.device)
        rows = max(16, _power(heads * share))
        return TileConfig(rows=rows, block=columns // heads, heads=heads, num_stages=num_stages)
    least_rows = _power(share)
    many = _TILES if storage.format is None else _CODE_TILES
    tiles = _EXACT_TILES if storage.read_dtype.itemsize > 2 else _FEW_TILES if size == 2 else many
    space = shared_bytes(storage.device)
    fits = [tile for tile in tiles if _tile_bytes(tile, row_bytes) <= space and tile.rows >= least_rows]
    return fits[0] if fits else TileConfig(rows=max(16, least_rows), block=16, num_stages=1)


def _tile_bytes(tile: TileConfig, row_bytes: int) -> int:
    """Shared memory of a program: queries, and a tile of keys and one of values more than are in flight."""
    return (tile.rows + 2 * (tile.num_stages + 1) * tile.block) * row_bytes + _OTHER_BYTES


def cut_of(config: TileConfig, share: int, storage: KVStorage, processors: int, *, causal: bool) -> Cut:
    """How lanes are cut that programs of a configuration compute."""
    return Cut(
        tile=config.rows // (config.heads * share),
        block=config.block,
        groups=storage.num_kv_heads // config.heads,
        programs=PROGRAMS_PER_PROCESSOR * processors,
        least=max(1, _LEAST_PART_TOKENS // config.block),
        most_parts=MOST_PARTS,
        causal=causal,
    )


def _upload(arrays: Sequence[Counts], device: torch.device) -> list[torch.Tensor]:
    """Copies arrays to the device in one go, without waiting for it: one int32 tensor each."""
    sizes = [-(-len(array) // _ALIGNMENT) * _ALIGNMENT for array in arrays]
    packed = torch.empty(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    target, start = packed.numpy(), 0
    for array, size in zip(arrays, sizes, strict=True):
        target[start : start + len(array)] = array
        start += size
    moved = packed.to(device, non_blocking=True)
    starts = accumulate(sizes, initial=0)
    return [moved[start : start + len(array)] for start, array in zip(starts, arrays, strict=False)]


def _flat_masks(masks: Sequence[torch.Tensor | None], device: torch.device) -> torch.Tensor:
    """All masks one behind the other, as bytes on the device."""
    parts = [mask.reshape(-1) for mask in masks if mask is not None]
    flat = torch.cat(parts).view(torch.uint8)
    if device.type == "cuda" and flat.device.type == "cpu":
        flat = flat.pin_memory()
    return flat.to(device, non_blocking=True)


def _power(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << (number - 1).bit_length()
