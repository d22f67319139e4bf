"""Paged attention on a CPU without copying histories: runs of consecutive pages are read in place.

A lane's context is cut into pieces (`engine.attention.pieces`); many lanes of one row and a short context are gathered
and done together (`engine.attention.decode_blocks`), because a call costs more than copying them. Each piece goes
through torch's flash kernel, which also returns the logarithm of each row's softmax sum; pieces of one row are merged
by these (arXiv 2205.14135, section 3.1).

Letters: T tokens, H query heads, G key/value heads, R = H / G heads that share one, D head_dim, N rows of a lane,
B lanes of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional

from engine.attention.backend import LaneLayout
from engine.attention.decode_blocks import DecodeBlock
from engine.attention.pieces import Piece
from engine.attention.step_work import StepWork, cut_step
from engine.kv.storage import KVStorage

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_NOTHING = -1e30
"""Log-sum of a row that saw nothing yet: low enough to weigh nothing, finite so that no difference is NaN."""


@dataclass(kw_only=True, slots=True)
class CpuPlan:
    """One step, cut into work once a window is known.

    Attributes:
        layout: The step.
        storage: K and V, for its shape and dtype.
    """

    layout: LaneLayout
    storage: KVStorage
    by_window: dict[int | None, StepWork] = field(default_factory=dict)

    def work(self, window: int | None) -> StepWork:
        """Work of the whole step; cut at the first layer that asks."""
        if window not in self.by_window:
            self.by_window[window] = cut_step(self.layout, self.storage, window)
        return self.by_window[window]


class CpuBackend:
    """Attention in place; see `AttentionBackend`."""

    name = "cpu"

    def plan(self, layout: LaneLayout, storage: KVStorage) -> CpuPlan:
        """Notes the step; lanes are cut at the first layer, which alone knows the window."""
        return CpuPlan(layout=layout, storage=storage)

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        storage: KVStorage,
        plan: CpuPlan,
        *,
        scale: float,
        sliding_window: int | None,
    ) -> torch.Tensor:
        """Attends; see `AttentionBackend.run`."""
        work = plan.work(sliding_window)
        slots = storage.slots(layer)
        keys, values = slots.transpose(1, 2).unsqueeze(1).unbind(0)
        grouped = query.view(query.shape[0], storage.num_kv_heads, -1, storage.head_dim)
        outputs = [_attend_block(grouped, slots, block, scale) for block in work.blocks]
        for lane in work.lanes:
            rows = grouped.narrow(0, lane.first_row, lane.num_rows)
            if lane.only_run is None:
                outputs.append(_attend_pieces(rows, slots, keys, values, lane.pieces, scale))
            else:
                start, length = lane.only_run
                run = keys.narrow(2, start, length), values.narrow(2, start, length)
                outputs.append(_flash(rows, *run, scale=scale)[0])
        attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        if work.restore is not None:
            attended = attended.index_select(0, work.restore)
        return attended.reshape(query.shape)


def _attend_block(grouped: torch.Tensor, slots: torch.Tensor, block: DecodeBlock, scale: float) -> torch.Tensor:
    """Attends a block of B single-row lanes; returns [B, G, R, D]."""
    num_lanes, context = block.num_lanes, block.context
    # As rows of one table K and V are gathered by one call; an embedding lookup is torch's fastest gather.
    gathered = functional.embedding(block.slots, slots.flatten(0, 1).flatten(1))
    keys, values = gathered.view(2, num_lanes, context, *slots.shape[2:]).transpose(2, 3).unbind(0)
    attended: torch.Tensor = _flash(
        grouped.index_select(0, block.rows), keys, values, attn_mask=block.mask, scale=scale
    )[0]
    return attended


def _attend_pieces(
    rows: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pieces: list[Piece],
    scale: float,
) -> torch.Tensor:
    """Attends a lane's rows [N, G, R, D] to all its pieces; returns the same shape."""
    # The heads that share K and V are rows of one product if the lane has one row. Otherwise they go into the batch
    # dimension, over which K and V repeat by a stride of 0.
    folded = rows.shape[0] == 1
    query = rows if folded else rows.permute(2, 1, 0, 3)
    if len(pieces) == 1:
        attended, _ = _attend_piece(query, slots, keys, values, pieces[0], scale)
    else:
        total = query.new_zeros(query.shape, dtype=torch.float32)
        log_sum = query.new_full(query.shape[:3], _NOTHING, dtype=torch.float32)
        for piece in pieces:
            first, count = (0, query.shape[2]) if folded else (piece.first_row, piece.num_rows)
            output, log = _attend_piece(query.narrow(2, first, count), slots, keys, values, piece, scale)
            _merge(total.narrow(2, first, count), log_sum.narrow(2, first, count), output, log)
        attended = total.to(rows.dtype)
    return attended if folded else attended.permute(2, 1, 0, 3)


def _attend_piece(
    query: torch.Tensor, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, piece: Piece, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attends query [B, G, rows, D] to one piece: output of the same shape, and log-sums [B, G, rows] float32."""
    if piece.gather is not None:
        keys, values = slots.index_select(1, piece.gather).transpose(1, 2).unsqueeze(1).unbind(0)
    else:
        keys, values = keys.narrow(2, piece.start, piece.length), values.narrow(2, piece.start, piece.length)
    repeat = (query.shape[0], -1, -1, -1)
    output, log = _flash(
        query, keys.expand(repeat), values.expand(repeat), 0.0, piece.causal, attn_mask=piece.mask, scale=scale
    )
    if piece.blind is not None:
        log = log.masked_fill(piece.blind, _NOTHING)
    return output, log.to(torch.float32)


def _merge(total: torch.Tensor, log_sum: torch.Tensor, output: torch.Tensor, log: torch.Tensor) -> None:
    """Folds the outputs of one piece into the running rows, in place."""
    after = torch.logaddexp(log_sum, log)
    total.mul_((log_sum - after).exp_().unsqueeze(-1)).addcmul_(output, (log - after).exp_().unsqueeze(-1))
    log_sum.copy_(after)
