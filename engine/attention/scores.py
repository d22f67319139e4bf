"""How much some rows of a step attend to each slot: worked out again beside the step, in torch, for those rows alone.

Letters: L layers, N rows of a lane, C slots of its context, T rows of all lanes, H query heads, G key/value heads,
D head_dim.

The kernels of a step never write such numbers down. So whoever wants them has the rows gone through the layers once
more, with the K and V that the step has stored; nothing is stored then, and nobody else's step is another one for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.attention.backend import LaneLayout
from engine.attention.sdpa import lane_slots
from engine.kv.storage import KVStorage
from engine.request import AttentionSpec

Scores = npt.NDArray[np.float32]
"""How much a row attends to each position of a history, up to its own at least: [C], or [L, C] of L layers each."""

_AT_ONCE = 1 << 24
"""Numbers of one product of queries and keys."""


Gather = Callable[[KVStorage, int, torch.Tensor], torch.Tensor]
"""Takes K and V of a layer out of the slots of a history [C]: [2, C, G, D]."""


class Attends(msgspec.Struct, frozen=True, eq=False):
    """Which rows of a lane are asked what they attend to.

    Attributes:
        rows: Counted from the lane's first, rising.
        spec: What is made of heads, layers and rows.
        columns: Positions of the slots of its context; None where they are the same.
    """

    rows: Sequence[int]
    spec: AttentionSpec
    columns: npt.NDArray[np.int64] | None = None


@dataclass(kw_only=True, slots=True)
class LaneScores:
    """What is found of one lane.

    Attributes:
        first, last: Its rows among all T, last excluded.
        slots: [C] int64.
        visible: [N, C] bool, without the window.
        distance: [N, C] int64, how far back each slot lies; None where a mask says everything.
        attends: What is wanted.
        gather: Takes K and V out of its pages.
        sums: [N, C] float32 of each layer so far; one of what all were worth, or the greatest, unless each is wanted.
        num_layers: How many that were.
    """

    first: int
    last: int
    slots: torch.Tensor
    visible: torch.Tensor
    distance: torch.Tensor | None
    attends: Attends
    gather: Gather
    sums: list[torch.Tensor] = field(default_factory=list)
    num_layers: int = 0

    def sees(self, window: int | None) -> torch.Tensor:
        """[N, C] bool."""
        if window is None or self.distance is None:
            return self.visible
        return self.visible & (self.distance < window)

    def note(self, layer: int, rows: slice, weights: torch.Tensor) -> None:
        """Takes down what a layer's heads [H, rows, C] are worth, if the layer counts."""
        spec = self.attends.spec
        if spec.layers and layer not in spec.layers:
            return
        wanted = weights[spec.heads] if spec.heads else weights
        if rows.start == 0:
            self.num_layers += 1
            if spec.by_layer or not self.sums:
                self.sums.append(torch.zeros(self.visible.shape, dtype=torch.float32, device=self.visible.device))
        sums = self.sums[-1][rows]
        if spec.reduce == "max":
            torch.maximum(sums, wanted.amax(0), out=sums)
        else:
            sums += wanted.mean(0)

    def found(self) -> list[Scores]:
        """By position: of each row, or of all together. Waits for the device."""
        spec, columns = self.attends.spec, self.attends.columns
        sums = torch.stack(self.sums, 1)
        if not spec.by_layer and spec.reduce == "mean":
            sums /= self.num_layers
        host = (sums.sum(0, keepdim=True) if spec.total else sums).cpu().numpy()
        if columns is not None:
            spread = np.zeros((*host.shape[:2], int(columns[-1]) + 1), dtype=np.float32)
            spread[..., columns] = host
            host = spread
        return list(host if spec.by_layer else host[:, 0])


class ScoreBackend:
    """Attention that writes down how much is attended to what, for some rows of a step; see `AttentionBackend`.

    Args:
        wanted: Lanes of the step, rising, and what is wanted of each.
        gathers: For each of them, what takes K and V out of its pages.
    """

    name = "scores"

    def __init__(self, wanted: Sequence[tuple[int, Attends]], gathers: Sequence[Gather]) -> None:
        self._wanted = wanted
        self._gathers = gathers

    def plan(self, layout: LaneLayout, storage: KVStorage) -> list[LaneScores]:
        """What the rows that are asked see, by the lanes of the whole step."""
        lanes, first, device = [], 0, layout.slots.device
        for (lane, attends), gather in zip(self._wanted, self._gathers, strict=True):
            length = layout.context_lens[lane]
            num_rows = layout.query_starts[lane + 1] - layout.query_starts[lane]
            rows = torch.as_tensor(attends.rows, dtype=torch.int64)
            distance = length - num_rows + rows[:, None] - torch.arange(length)
            mask = layout.masks[lane] if layout.masks else None
            slots = torch.from_numpy(lane_slots(layout.block_tables[lane], length, storage.page_size))
            lanes.append(
                LaneScores(
                    first=first,
                    last=first + len(rows),
                    slots=slots.to(device),
                    visible=(distance >= 0 if mask is None else mask[rows]).to(device),
                    distance=distance.to(device) if mask is None else None,
                    attends=attends,
                    gather=gather,
                )
            )
            first += len(rows)
        return lanes

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: Sequence[LaneScores],
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends in float32; see `AttentionBackend.run`."""
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for lane in plan:
            keys, values = lane.gather(storage, layer, lane.slots).float()
            sees = lane.sees(sliding_window)
            count = max(1, _AT_ONCE // (query.shape[1] * len(lane.slots)))
            for start in range(0, lane.last - lane.first, count):
                rows = slice(start, min(start + count, lane.last - lane.first))
                some = query[lane.first + rows.start : lane.first + rows.stop].float()
                weights = _weights(some, keys, sees[rows], scale)
                lane.note(layer, rows, weights.flatten(0, 1))
                attended = torch.einsum("ghnc,cgd->nghd", weights, values)
                output[lane.first + rows.start : lane.first + rows.stop] = attended.flatten(1, 2)
        return output


def _weights(query: torch.Tensor, keys: torch.Tensor, sees: torch.Tensor, scale: float) -> torch.Tensor:
    """[G, H / G, N, C] float32, what each row's heads attend to; each row sums up to 1."""
    grouped = query.view(len(query), keys.shape[1], -1, query.shape[2])
    scores = torch.einsum("nghd,cgd->ghnc", grouped, keys) * scale
    return scores.masked_fill_(~sees, -torch.inf).softmax(-1)


def add_scores(found: list[Scores], more: Sequence[Scores], spec: AttentionSpec) -> None:
    """Adds what another step gave: further rows, or more to the sum of all."""
    if not (spec.total and found and more):
        found += more
        return
    (before,), (behind,) = found, more
    longest = np.zeros((*before.shape[:-1], max(before.shape[-1], behind.shape[-1])), dtype=np.float32)
    longest[..., : before.shape[-1]] += before
    longest[..., : behind.shape[-1]] += behind
    found[0] = longest
