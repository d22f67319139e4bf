"""Room on the device for plans of one shape, at addresses that stay: what a recorded step attends by.

Letters: L lanes, W pieces of work, P pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch

from engine.attention.backend import LaneLayout
from engine.attention.tables import Counts
from engine.attention.triton import (
    PROGRAMS_PER_PROCESSOR,
    CutLaunch,
    Launch,
    TritonPlan,
    cut_of,
    cut_step,
    lane_sizes,
    num_processors,
    tile_config,
)
from engine.cuda.kernels.paged_attention import PIECE_FIELDS, Pieces, TileConfig
from engine.kv.storage import KVStorage

MOST_PAGES = 32768
"""Pages of all lanes together."""

_NUM_PARTS = 7
"""Which number of a piece says how many parts there are: one, of a piece that is nobody's and has no tokens."""


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """What launches of steps must have in common to be recorded once.

    Attributes:
        size: See `CutLaunch`.
        config: See `CutLaunch`.
        lanes: Most lanes.
    """

    size: int
    config: TileConfig
    lanes: int


def launch_shapes(room: Mapping[int, int], share: int, storage: KVStorage) -> tuple[LaunchShape, ...]:
    """Launches with room for so many lanes.

    Args:
        room: Lanes by size.
        share: Query heads that share a key/value head.
        storage: K and V.
    """
    processors = num_processors(storage.device)
    return tuple(
        LaunchShape(size, tile_config(size, lanes, share, storage, processors), lanes) for size, lanes in room.items()
    )


def count_lanes(layout: LaneLayout, share: int) -> dict[int, int] | None:
    """Lanes of a step by size; None where it has masks or too many pages for any room.

    Args:
        layout: The step.
        share: Query heads that share a key/value head.
    """
    if any(mask is not None for mask in layout.masks) or len(layout.tables.pages) > MOST_PAGES:
        return None
    starts = layout.tables.query_starts
    counts = np.bincount(lane_sizes(starts[1:] - starts[:-1], share), minlength=4)
    return {size: int(counts[size]) for size in (1, 2, 3) if counts[size]}


class PlanRoom:
    """One plan, filled anew for each step.

    Args:
        shapes: Of its launches.
        num_tokens: Most tokens of a step.
        share: Query heads that share a key/value head.
        storage: K and V.

    Attributes:
        plan: For `TritonBackend.run`; empty at first: pieces that have no tokens.
    """

    def __init__(self, shapes: Sequence[LaunchShape], num_tokens: int, share: int, storage: KVStorage) -> None:
        device, groups = storage.device, storage.num_kv_heads
        self._device = device
        self._shapes = shapes
        self._counts = [_most_pieces(shape, num_tokens, share, storage) for shape in shapes]
        starts = list(accumulate((count * PIECE_FIELDS for count in self._counts), initial=0))
        self._starts = starts
        self._block = torch.zeros(starts[-1] + MOST_PAGES, dtype=torch.int32, device=device)
        pages = self._block[starts[-1] :]
        launches = []
        for shape, start, count in zip(shapes, starts, self._counts, strict=False):
            fields = self._block[start : start + count * PIECE_FIELDS].view(count, PIECE_FIELDS)
            fields[:, _NUM_PARTS] = 1
            pieces = Pieces(fields=fields, pages=pages, num_parts=count, num_results=count)
            launches.append(Launch(pieces=pieces, config=shape.config))
        most = max(self._counts, default=0)
        layout = LaneLayout(query_starts=(0,), context_lens=(), block_tables=(), slots=pages[:0])
        self.plan = TritonPlan(layout=layout, storage=storage, launches=launches)
        self.plan.counters = torch.zeros(most * groups, dtype=torch.int32, device=device)

    def cut(self, layout: LaneLayout, share: int) -> list[CutLaunch | None] | None:
        """Cuts a step, by shape; None if it does not fit. It has lanes of these sizes alone, and not too many."""
        configs = {shape.size: shape.config for shape in self._shapes}
        found = {one.size: one for one in cut_step(layout, self.plan.storage, share, configs=configs)}
        cuts = [found.get(shape.size) for shape in self._shapes]
        fits = all(one is None or len(one.cut.fields) <= most for one, most in zip(cuts, self._counts, strict=True))
        return cuts if fits else None

    def fill(self, cuts: Sequence[CutLaunch | None], pages: Counts) -> None:
        """Makes it the plan of a step that fits, in one copy for which nobody waits.

        Args:
            cuts: What `cut` made of it.
            pages: Of all its lanes.
        """
        used = self._starts[-1] + len(pages)
        host = torch.zeros(used, dtype=torch.int32, pin_memory=self._device.type == "cuda")
        numbers = host.numpy()
        for one, start, count in zip(cuts, self._starts, self._counts, strict=False):
            fields = numbers[start : start + count * PIECE_FIELDS].reshape(count, PIECE_FIELDS)
            num_used = 0 if one is None else len(one.cut.fields)
            if one is not None:
                fields[:num_used] = one.cut.fields
            fields[num_used:, _NUM_PARTS] = 1
        numbers[self._starts[-1] :] = pages
        self._block[:used].copy_(host, non_blocking=True)


def _most_pieces(shape: LaunchShape, num_tokens: int, share: int, storage: KVStorage) -> int:
    """Pieces that lanes of so many tokens are cut into at most: tiles, and parts that keep the device busy."""
    processors = num_processors(storage.device)
    cut = cut_of(shape.config, share, storage, processors, causal=True)
    tiles = shape.lanes if shape.size < 3 else -(-num_tokens // cut.tile) + shape.lanes
    return tiles + -(-PROGRAMS_PER_PROCESSOR * processors // cut.groups)
