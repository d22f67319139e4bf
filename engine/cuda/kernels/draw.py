"""Launches all kernels of a draw: logits in, tokens out, every input and output at an address that stays.

Letters: M lanes, V vocabulary, W words of a bit mask, C chunks, R rows of device state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton

from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw_config import draw_config
from engine.cuda.kernels.logit_edits import edit_chunks
from engine.cuda.kernels.tokens import pick, score_chunks
from engine.cuda.kernels.truncation import find_cuts

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
        masks: [*, W] int32, contiguous, bit i of word w allows token 32 * w + i; None if no lane has one.
        mask_of: [M] int32, which of them a lane has, negative for none; goes with `masks`.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    num_outputs: torch.Tensor
    masks: torch.Tensor | None = None
    mask_of: torch.Tensor | None = None


def launch_draw(
    logits: torch.Tensor,
    table: DrawTable,
    lanes: DrawLanes,
    out_tokens: torch.Tensor,
    *,
    num_lanes: int,
    form: DrawForm,
    pdl: bool,
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

    Raises:
        ValueError: Shapes, dtypes or room do not fit.
    """
    _check(logits, table, lanes, out_tokens, num_lanes)
    launch = _Launch(logits, table, lanes, num_lanes, form == FULL, pdl)
    if form == FULL:
        launch.edit()
        launch.truncate()
    launch.score()
    launch.pick(out_tokens)


def _check(logits: torch.Tensor, table: DrawTable, lanes: DrawLanes, out_tokens: torch.Tensor, num_lanes: int) -> None:
    vocab_size = table.state.vocab_size
    if logits.dtype != torch.float32 or not logits.is_contiguous() or logits.shape[1] != vocab_size:
        raise ValueError(f"logits must be contiguous float32 [M, {vocab_size}], got {logits.dtype} {logits.shape}")
    vectors = [logits, lanes.rows, lanes.positions, lanes.num_outputs, out_tokens]
    if lanes.masks is not None and lanes.mask_of is not None:
        vectors.append(lanes.mask_of)
        num_words = triton.cdiv(vocab_size, 32)
        if lanes.masks.shape[1:] != (num_words,) or not lanes.masks.is_contiguous():
            raise ValueError(f"masks must be contiguous [*, {num_words}], got {list(lanes.masks.shape)}")
    room = min(table.scratch.max_lanes, *map(len, vectors))
    if not 0 < num_lanes <= room:
        raise ValueError(f"a draw of {num_lanes} lanes has room for {room}")


class _Launch:
    def __init__(
        self, logits: torch.Tensor, table: DrawTable, lanes: DrawLanes, num_lanes: int, is_full: bool, pdl: bool
    ) -> None:
        vocab_size = logits.shape[1]
        self._logits, self._table, self._lanes, self._scratch = logits, table, lanes, table.scratch
        self._config = table.config or draw_config(num_lanes, vocab_size)
        self._num_lanes, self._vocab_size, self._is_full = num_lanes, vocab_size, is_full
        self._num_chunks = self._config.num_chunks(vocab_size)
        self._num_peaks = self._config.num_peaks(vocab_size)
        self._pdl: dict[str, bool] = {"PDL": pdl, "launch_pdl": pdl}

    def edit(self) -> None:
        lanes, table, scratch = self._lanes, self._table, self._scratch
        masks = lanes.rows if lanes.masks is None else lanes.masks
        mask_of = lanes.rows if lanes.mask_of is None else lanes.mask_of
        edit_chunks[(self._num_chunks, self._num_lanes)](
            *(self._logits, lanes.rows, lanes.num_outputs, table.words, table.numbers, masks, mask_of),
            *(scratch.peaks, scratch.maxima, scratch.sums),
            C=self._num_chunks,
            V=self._vocab_size,
            W=triton.cdiv(self._vocab_size, 32),
            BLOCK=self._config.block,
            PEAK=self._config.peak,
            HAS_MASKS=lanes.masks is not None and lanes.mask_of is not None,
            num_warps=self._config.num_warps,
            enable_fp_fusion=False,  # penalties round as torch does, or equals differ
            **self._pdl,
        )

    def truncate(self) -> None:
        table, scratch, config, num_peaks = self._table, self._scratch, self._config, self._num_peaks
        find_cuts[(self._num_lanes,)](
            *(self._logits, self._lanes.rows, table.words, table.numbers),
            *(scratch.peaks, scratch.maxima, scratch.sums, scratch.blocks),
            *(scratch.candidates, scratch.candidate_ids, scratch.cut_values, scratch.cut_ids),
            C=self._num_chunks,
            CHUNKS=triton.next_power_of_2(self._num_chunks),
            V=self._vocab_size,
            P=num_peaks,
            PEAKS=triton.next_power_of_2(num_peaks),
            PEAK=config.peak,
            FEW=max(1, min(512, num_peaks // 2)),
            CAPACITY=config.capacity,
            GATHERED=config.gathered,
            TILE=config.tile,
            num_warps=config.lane_warps,
            **self._pdl,
        )

    def score(self) -> None:
        scratch = self._scratch
        score_chunks[(self._num_chunks, self._num_lanes)](
            *(self._logits, self._lanes.rows, self._lanes.positions, self._table.words, self._table.numbers),
            *(scratch.cut_values, scratch.cut_ids, scratch.best, scratch.ids, scratch.rivals),
            C=self._num_chunks,
            V=self._vocab_size,
            BLOCK=self._config.block,
            FULL=self._is_full,
            num_warps=self._config.num_warps,
            **self._pdl,
        )

    def pick(self, out_tokens: torch.Tensor) -> None:
        lanes, table, scratch = self._lanes, self._table, self._scratch
        pick[(self._num_lanes,)](
            *(self._logits, lanes.rows, lanes.positions, lanes.num_outputs, table.words, table.numbers),
            *(scratch.cut_values, scratch.cut_ids, scratch.best, scratch.ids, scratch.rivals),
            *(table.state.last_tokens, out_tokens),
            C=self._num_chunks,
            CHUNKS=triton.next_power_of_2(self._num_chunks),
            V=self._vocab_size,
            BLOCK=self._config.block,
            FULL=self._is_full,
            num_warps=self._config.num_warps,
            **self._pdl,
        )
