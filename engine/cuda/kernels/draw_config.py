"""How a draw is cut into programs."""

from __future__ import annotations

from dataclasses import dataclass

import triton


@dataclass(frozen=True, slots=True)
class DrawConfig:
    """Sizes of a draw's kernels; all but warps are powers of two.

    Attributes:
        block: Tokens of a chunk.
        peak: Tokens that a peak is the greatest of; divides `block`.
        capacity: Tokens that can be gathered of a lane that draws from few.
        gathered: Peaks whose tokens are looked at together.
        tile: Tokens looked at together where whole rows are.
        num_warps: Of a program of a chunk.
        lane_warps: Of one that truncates a lane.
    """

    block: int
    peak: int = 128
    capacity: int = 2048
    gathered: int = 32
    tile: int = 4096
    num_warps: int = 4
    lane_warps: int = 16

    def num_chunks(self, vocab_size: int) -> int:
        """C, chunks of a vocabulary."""
        return -(-vocab_size // self.block)

    def num_peaks(self, vocab_size: int) -> int:
        """P, peaks of a vocabulary; the last may be of no token."""
        return self.num_chunks(vocab_size) * (self.block // self.peak)


def draw_config(num_lanes: int, vocab_size: int) -> DrawConfig:
    """What is fast on an H200: many small chunks for few lanes, fewer and larger ones for many.

    Args:
        num_lanes: Lanes, padding included.
        vocab_size: Tokens of the vocabulary.
    """
    block = 1024 if num_lanes <= 8 else 2048
    return DrawConfig(block=min(block, max(128, triton.next_power_of_2(vocab_size))))
