"""Launches all kernels of a draw: logits in, tokens out, every input and output at an address that stays.

Letters: M lanes, V vocabulary, W words of a bit mask, C chunks, R rows of device state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton

from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw_config import DrawConfig, draw_config
from engine.cuda.kernels.tokens import pick, score_chunks

__all__ = ["FULL", "PLAIN", "DrawForm", "DrawLanes", "launch_draw"]

DrawForm = Literal["plain", "full"]
PLAIN: DrawForm = "plain"
"""The likeliest token, or a draw from the whole vocabulary."""
FULL: DrawForm = "full"
"""All that sampling parameters and masks may ask for; what no lane asks for costs nearly nothing."""


@dataclass(frozen=True, slots=True)
class DrawLanes:
    """What lanes draw with; all on the device, and read when the kernels run.

    Attributes:
        rows: [M] int32, rows of the table; negative for padding.
        positions: [M] int32, index of the token about to be drawn: tokens in the sequence before it.
        num_outputs: [M] int32, output tokens drawn before this one.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    num_outputs: torch.Tensor


def launch_draw(
    logits: torch.Tensor,
    table: DrawTable,
    lanes: DrawLanes,
    out_tokens: torch.Tensor,
    *,
    num_lanes: int,
    form: DrawForm,
    pdl: bool,
    config: DrawConfig | None = None,
) -> None:
    """Chooses a token a lane and remembers it: `last_tokens` of the state, and counts and history where a row has them.

    Waits for nothing. `DrawTable.sync` comes before, and before every replay of a captured one.

    Args:
        logits: [M, V] float32, contiguous; those of `FULL` may be changed. NaN counts as -inf, +inf as a large number.
        table: Parameters of the rows.
        lanes: One a row of `logits`.
        out_tokens: [M] integers, written; left alone in padding.
        num_lanes: Lanes of this draw, at most M, padding included.
        form: `PLAIN` only if `DrawTable.is_plain` and no lane has a mask.
        pdl: Whether kernels may start before the one in front has ended.
        config: How it is cut, instead of what is fast.

    Raises:
        ValueError: Shapes, dtypes or room do not fit.
    """
    vocab_size = table.state.vocab_size
    _check(logits, table, lanes, out_tokens, num_lanes)
    config = config or draw_config(num_lanes, vocab_size)
    _score(logits, table, lanes, config, num_lanes, form, pdl)
    _pick(logits, table, lanes, out_tokens, config, num_lanes, form, pdl)


def _check(logits: torch.Tensor, table: DrawTable, lanes: DrawLanes, out_tokens: torch.Tensor, num_lanes: int) -> None:
    vocab_size, max_lanes = table.state.vocab_size, table.scratch.max_lanes
    if logits.dtype != torch.float32 or not logits.is_contiguous() or logits.shape[1] != vocab_size:
        raise ValueError(f"logits must be contiguous float32 [M, {vocab_size}], got {logits.dtype} {logits.shape}")
    room = min(max_lanes, *map(len, (logits, lanes.rows, lanes.positions, lanes.num_outputs, out_tokens)))
    if not 0 < num_lanes <= room:
        raise ValueError(f"a draw of {num_lanes} lanes has room for {room}")


def _score(
    logits: torch.Tensor,
    table: DrawTable,
    lanes: DrawLanes,
    config: DrawConfig,
    num_lanes: int,
    form: DrawForm,
    pdl: bool,
) -> None:
    vocab_size = logits.shape[1]
    num_chunks = triton.cdiv(vocab_size, config.block)
    score_chunks[(num_chunks, num_lanes)](
        logits,
        lanes.rows,
        lanes.positions,
        table.words,
        table.numbers,
        table.scratch.cut_values,
        table.scratch.cut_ids,
        table.scratch.best,
        table.scratch.ids,
        table.scratch.rivals,
        C=num_chunks,
        V=vocab_size,
        BLOCK=config.block,
        FULL=form == FULL,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )


def _pick(
    logits: torch.Tensor,
    table: DrawTable,
    lanes: DrawLanes,
    out_tokens: torch.Tensor,
    config: DrawConfig,
    num_lanes: int,
    form: DrawForm,
    pdl: bool,
) -> None:
    vocab_size = logits.shape[1]
    num_chunks = triton.cdiv(vocab_size, config.block)
    pick[(num_lanes,)](
        logits,
        lanes.rows,
        lanes.positions,
        lanes.num_outputs,
        table.words,
        table.numbers,
        table.scratch.cut_values,
        table.scratch.cut_ids,
        table.scratch.best,
        table.scratch.ids,
        table.scratch.rivals,
        table.state.last_tokens,
        out_tokens,
        C=num_chunks,
        CHUNKS=triton.next_power_of_2(num_chunks),
        V=vocab_size,
        BLOCK=config.block,
        FULL=form == FULL,
        PDL=pdl,
        num_warps=config.pick_warps,
        launch_pdl=pdl,
    )
