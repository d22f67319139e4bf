"""Attention of whole prompts by cuDNN, through torch; of all other lanes by kernels of our own.

cuDNN comes with torch and compiles nothing. It takes lanes of one length that attend to themselves alone
(`engine.attention.fresh`); chunks that go on with a prompt, decoding lanes, and lanes with masks are left to Triton. On
an H200 four prompts of 2,048 tokens take it 144 us a layer of 16 query heads of 128 numbers, and our own kernel 222.

Preparing a shape takes cuDNN about 40 ms, as much as it saves in some twenty steps, and torch keeps what was prepared
for good, for each thread, so that no other thread can do it beforehand. A shape is left to Triton until it has come a
few times.

Letters: T rows of the step, M rows behind them, H query heads, G key/value heads, D head_dim, B lanes of a batch, N
rows of each.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.backend import DenseRows, LaneLayout
from engine.attention.cudnn_library import Attend, attend_by_cudnn, attend_by_torch, check_model, try_library
from engine.attention.fresh import Batch, Cuts, FreshLanes, Numbers, Shape, fresh_lanes, num_fresh_rows, shapes_of
from engine.attention.triton import TritonBackend, TritonPlan
from engine.kv.storage import KVStorage

log = logging.getLogger(__name__)

WANTED = 3
"""How often a shape comes before cuDNN prepares it."""


@dataclass(kw_only=True, slots=True)
class CudnnPlan:
    """One step.

    Attributes:
        layout: It.
        fresh: Lanes that cuDNN takes; None for none.
        others: All other lanes that have rows; None for none.
        targets: As in `fresh`, on the device, where lanes are put behind the step's rows.
        behind: The step's rows that are put there, and which of the M they are, on the device; once they are needed.
        room: Query, key and value rows, made by the first layer and used by all.
    """

    layout: LaneLayout
    fresh: FreshLanes | None
    others: TritonPlan | None
    targets: torch.Tensor | None = None
    behind: tuple[torch.Tensor, torch.Tensor] | None = None
    room: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None

    @property
    def num_rows(self) -> int:
        """T."""
        return self.layout.query_starts[-1]


class CudnnBackend:
    """Attention by cuDNN and Triton; see `AttentionBackend` and `DenseBackend`.

    Args:
        ours: For lanes that cuDNN does not take.
        cuts: Which lanes it takes.
        attend: What computes them.
        wanted: How often a shape comes before it is computed so.
    """

    name = "cudnn"

    def __init__(
        self,
        ours: TritonBackend,
        cuts: Cuts | None = None,
        attend: Attend | None = None,
        wanted: int = WANTED,
    ) -> None:
        self._ours = ours
        self._cuts = cuts or Cuts()
        self._attend = attend or attend_by_cudnn
        self._window: int | None = None
        self._has_failed = False
        self._wanted = wanted
        self._come: Counter[Shape] = Counter()
        self._ready: set[Shape] = set()
        self._looked: tuple[LaneLayout | None, FreshLanes | None] = (None, None)

    def prepare(self, storage: KVStorage, num_heads: int, sliding_window: int | None) -> None:
        """Tries a batch of the least size, and makes our own kernels ready.

        Raises:
            ModelLoadError: cuDNN does not take the model's heads or the dtype of K and V, or does not work here.
        """
        check_model(storage)
        self._window = sliding_window
        self._ours.prepare(storage, num_heads, sliding_window)
        try_library(self._attend, storage, num_heads, self._cuts.sizes[0])

    def suits(self, layout: LaneLayout) -> bool:
        """Whether at least half of a step's rows are of lanes that cuDNN takes."""
        lanes = self._lanes_of(layout)
        return lanes is not None and 2 * num_fresh_rows(lanes) >= layout.query_starts[-1]

    def whole(self, layout: LaneLayout) -> tuple[Batch, ...] | None:
        """The batches that a step is made of, if it is made of nothing else: then they say how to attend in it."""
        lanes = self._lanes_of(layout)
        if lanes is None or lanes.num_behind or num_fresh_rows(lanes) < layout.query_starts[-1]:
            return None
        return lanes.batches

    def plan_whole(self, batches: tuple[Batch, ...], layout: LaneLayout) -> CudnnPlan:
        """A plan for any step that is made of these batches.

        Args:
            batches: What `whole` said of one.
            layout: Of as many rows; its slots alone are read.
        """
        return CudnnPlan(layout=layout, fresh=FreshLanes(is_taken=np.ones(0, dtype=bool), batches=batches), others=None)

    def plan(self, layout: LaneLayout, storage: KVStorage) -> CudnnPlan:
        """Sorts the lanes."""
        lanes = self._lanes_of(layout)
        others = None
        if lanes is None:
            others = self._ours.plan(layout, storage)
        elif num_fresh_rows(lanes) < layout.query_starts[-1]:
            others = self._ours.plan(layout, storage, lanes.is_taken)
        targets = None
        if lanes is not None and lanes.num_behind:
            targets = _send(lanes.targets, storage.device)
        return CudnnPlan(layout=layout, fresh=lanes, others=others, targets=targets)

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: CudnnPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`. K and V are read from the pages."""
        if plan.fresh is None:
            assert plan.others is not None
            return self._ours.run(layer, query, storage, plan.others, scale=scale, sliding_window=sliding_window)
        key, value = storage.gather(layer, plan.layout.slots)
        rows = DenseRows(query=query.contiguous(), key=key, value=value, targets=None, has_values=True)
        if plan.targets is not None:
            rows = self._put_behind(plan, rows)
        return self.run_dense(layer, rows, storage, plan, scale=scale, sliding_window=sliding_window)

    def dense_rows(self, plan: CudnnPlan, qkv: torch.Tensor, storage: KVStorage) -> DenseRows | None:
        """Rows for `run_dense`: V where the product left it, if lanes need no filling; see `DenseBackend`."""
        if plan.fresh is None:
            return None
        groups, size = storage.num_kv_heads, storage.head_dim
        heads = qkv.view(len(qkv), -1, size)
        query, key, value = self._room(plan, qkv, heads.shape[1] - 2 * groups, groups, size)
        has_values = value is None
        if value is None:
            value = heads[:, -groups:]
        return DenseRows(query=query, key=key, value=value, targets=plan.targets, has_values=has_values)

    def run_dense(
        self,
        layer: int,
        rows: DenseRows,
        storage: KVStorage,
        plan: CudnnPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends to what `dense_rows` asked for; see `DenseBackend`."""
        assert plan.fresh is not None
        if sliding_window != self._window:
            raise ValueError(f"made ready for a sliding window of {self._window}, and not of {sliding_window}")
        batches, num_rows, behind = plan.fresh.batches, plan.num_rows, plan.fresh.num_behind
        query = rows.query[num_rows:] if behind else rows.query
        if not behind and len(batches) == 1 and batches[0].stop - batches[0].start == num_rows:
            found = self._attend_batch(batches[0], query, rows, scale)
            return found.reshape(query.shape)
        own = rows.query[:num_rows]
        if plan.others is None:
            output = torch.empty_like(own)
        else:
            output = self._ours.run(layer, own, storage, plan.others, scale=scale, sliding_window=sliding_window)
        for batch in batches:
            found = self._attend_batch(batch, query, rows, scale)
            for run in batch.runs:
                stop = run.first_row + run.num_lanes * run.num_rows
                place = output[run.first_row : stop].view(run.num_lanes, run.num_rows, *output.shape[1:])
                place.copy_(found[run.place : run.place + run.num_lanes, : run.num_rows])
        return output

    def _lanes_of(self, layout: LaneLayout) -> FreshLanes | None:
        """The lanes that cuDNN takes, if it is to; asked about a step again, says the same."""
        if self._looked[0] is not layout:
            lanes = None if self._has_failed else fresh_lanes(layout, self._cuts, self._window)
            if lanes is not None and not self._is_ready(shapes_of(lanes)):
                lanes = None
            self._looked = layout, lanes
        return self._looked[1]

    def _is_ready(self, shapes: set[Shape]) -> bool:
        """Whether all have come often enough, this time included."""
        new = shapes - self._ready
        self._come.update(new)
        if any(self._come[shape] < self._wanted for shape in new):
            return False
        self._ready |= new
        return True

    def _attend_batch(self, batch: Batch, query: torch.Tensor, rows: DenseRows, scale: float) -> torch.Tensor:
        """[B, N, H, D] of a batch."""
        query, key, value = (
            each[batch.start : batch.stop].view(batch.num_lanes, batch.size, *each.shape[1:]).transpose(1, 2)
            for each in (query, rows.key, rows.value)
        )
        try:
            found = self._attend(query, key, value, scale)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.warning(
                "cuDNN does not attend to %s lanes of %s rows, nor will it be asked again: %s",
                *query.shape[:3:2],
                error,
            )
            self._has_failed, self._attend, self._looked = True, attend_by_torch, (None, None)
            found = attend_by_torch(query, key, value, scale)
        return found.transpose(1, 2)

    def _room(
        self, plan: CudnnPlan, like: torch.Tensor, num_heads: int, groups: int, size: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        if plan.room is None:
            assert plan.fresh is not None
            behind = plan.fresh.num_behind
            query = like.new_empty((plan.num_rows + behind, num_heads, size))
            if behind:
                # Filling is seen by no row of a lane, but 0 times what is no number would be none either.
                plan.room = query, like.new_zeros((behind, groups, size)), like.new_zeros((behind, groups, size))
            else:
                plan.room = query, like.new_empty((plan.num_rows, groups, size)), None
        return plan.room

    def _put_behind(self, plan: CudnnPlan, rows: DenseRows) -> DenseRows:
        """Rows as they lie in the step, put where `targets` says."""
        assert plan.fresh is not None
        assert plan.targets is not None
        num_heads, size = rows.query.shape[1:]
        query, key, value = self._room(plan, rows.query, num_heads, rows.key.shape[1], size)
        assert value is not None
        if plan.behind is None:
            own = np.flatnonzero(plan.fresh.targets >= plan.num_rows)
            places = plan.fresh.targets[own] - plan.num_rows
            plan.behind = _send(own, query.device), _send(places, query.device)
        own_rows, places_behind = plan.behind
        query.index_copy_(0, plan.targets, rows.query)
        key.index_copy_(0, places_behind, rows.key.index_select(0, own_rows))
        value.index_copy_(0, places_behind, rows.value.index_select(0, own_rows))
        return DenseRows(query=query, key=key, value=value, targets=plan.targets, has_values=True)


def _send(numbers: Numbers, device: torch.device) -> torch.Tensor:
    """On the device; nobody waits for the copy."""
    host = torch.from_numpy(numbers)
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
