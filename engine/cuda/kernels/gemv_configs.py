"""How the products of one row are cut into programs: measured choices for the H200, and a rule for all other shapes.

Letters: N outputs, K inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import triton

__all__ = ["MEASURED", "GemvConfig", "GemvOperation", "gemv_config"]

GemvOperation = Literal["norm", "gated", "residual", "head"]
"""`norm_matvec` and so on."""


@dataclass(frozen=True, slots=True)
class GemvConfig:
    """How one product is cut.

    Attributes:
        rows: Rows of the weight in a tile, a power of two; half of them gate and half up for `gated_matvec`.
        block_k: Numbers of a row that a tile holds, a power of two; whole rows if not less than K.
        num_warps: Of a program.
        programs: Most programs of `head_matvec`, which takes tiles in turn; the others have one for each tile.
    """

    rows: int
    block_k: int
    num_warps: int = 4
    programs: int = 264


MEASURED: dict[tuple[GemvOperation, int, int], GemvConfig] = {
    # Qwen3-0.6B
    ("norm", 4096, 1024): GemvConfig(16, 1024),
    ("residual", 1024, 2048): GemvConfig(2, 2048),
    ("gated", 6144, 1024): GemvConfig(8, 1024, num_warps=2),
    ("residual", 1024, 3072): GemvConfig(2, 1024),
    ("head", 151936, 1024): GemvConfig(16, 1024, programs=264),
    # Llama-3.1-8B
    ("norm", 6144, 4096): GemvConfig(4, 4096),
    ("residual", 4096, 4096): GemvConfig(8, 1024),
    ("gated", 28672, 4096): GemvConfig(8, 2048, num_warps=8),
    ("residual", 4096, 14336): GemvConfig(4, 512),
    ("head", 128256, 4096): GemvConfig(4, 4096, programs=528),
}
"""By operation, rows of the weight and inputs; bfloat16."""

_FEWEST_PROGRAMS = 264
"""Two on each multiprocessor of an H200."""


def gemv_config(operation: GemvOperation, weight: torch.Tensor) -> GemvConfig:
    """How to cut the product with a weight.

    Args:
        operation: Which function will take it.
        weight: [N, K].
    """
    outputs, inputs = weight.shape
    measured = MEASURED.get((operation, outputs, inputs)) if weight.dtype == torch.bfloat16 else None
    return measured or _rule(operation, outputs, inputs, 4 // weight.element_size())


def _rule(operation: GemvOperation, outputs: int, inputs: int, word_numbers: int) -> GemvConfig:
    """Whole rows if they are short or must be, else chunks; as many rows as registers hold, fewer if programs lack."""
    row_words = triton.next_power_of_2(triton.cdiv(inputs, word_numbers))
    if operation == "head":
        warps = 4 if row_words <= 2048 else 8
        held, programs = {1: (32, 528), 2: (64, 264), 4: (16, 528)}[word_numbers]
        return GemvConfig(_rows(held, row_words, warps), row_words * word_numbers, warps, programs)
    even = inputs & -inputs  # the largest power of two that leaves no chunk partly empty
    if row_words <= 512 or (row_words <= 2048 and even == inputs):
        block_words, warps, held = row_words, 4 if row_words <= 1024 else 8, 32
    else:
        block_words, warps, held = max(256, min(even // word_numbers, 512)), 4, 16
    fewest = 2 if operation == "gated" else 1
    rows = max(fewest, _rows(held, block_words, warps))
    while rows > fewest and outputs // rows < _FEWEST_PROGRAMS:
        rows //= 2
    return GemvConfig(rows, block_words * word_numbers, warps)


def _rows(held: int, block_words: int, warps: int) -> int:
    """Rows of a tile of which each thread holds some words."""
    return min(16, max(1, held * warps * 32 // block_words))
