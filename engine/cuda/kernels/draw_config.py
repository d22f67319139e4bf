"""How a draw is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

import triton


@dataclass(frozen=True, slots=True)
class DrawConfig:
    """Sizes of a draw's kernels.

    Attributes:
        block: Tokens of a chunk, a power of two.
        num_warps: Of a program that scores a chunk.
        pick_warps: Of one that picks from a lane's chunks.
    """

    block: int
    num_warps: int
    pick_warps: int


def draw_config(num_lanes: int, vocab_size: int) -> DrawConfig:
    """What is fast on an H200: many small chunks for few lanes, fewer and larger ones for many.

    Args:
        num_lanes: Lanes, padding included.
        vocab_size: Tokens of the vocabulary.
    """
    block = 1024 if num_lanes <= 8 else 2048
    return DrawConfig(block=min(block, max(32, triton.next_power_of_2(vocab_size))), num_warps=4, pick_warps=4)
