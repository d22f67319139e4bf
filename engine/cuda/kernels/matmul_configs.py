"""How the products of two to 64 lanes are cut into programs, by operation and shape.

Letters: M lanes (padded width: 8, 16, 32 or 64), N rows of a weight, K its columns, E hidden_size.
The table holds what was fastest on an H200 in bfloat16; every other shape follows a rule fitted to it. At eight lanes
a product of few outputs is cut along K among the warps of a program, from sixteen on among programs; tiles of 64 rows
and more run on warpgroup instructions, which keep up with the memory where smaller ones do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

Operation = Literal["qkv", "output", "gate_up", "down", "head"]
"""The products of a step; `output` and `down` add to the residual stream."""

Prefetch = Literal["none", "registers", "l2"]
"""What a program does about its weights before the kernel in front has ended.

`registers` loads up to three of its tiles, `l2` has the first 128 KiB of its part of the weight brought into the L2
cache.
"""

PRELOADED_TILES = 3
"""Most tiles that a program holds in registers before it waits."""

PREFETCHED_BYTES = 128 << 10
"""Most that a program has brought into the L2 cache before it waits."""

_L2_BYTES = 16 << 20
"""Weights up to this size are prefetched: they and the activations stay in an L2 of 50 MB."""

_MANY_OUTPUTS = 16384
"""From here on there are programs enough with large tiles."""

_SLICES = 4

_RESIDUAL = ("output", "down")


@dataclass(frozen=True, slots=True)
class MatmulConfig:
    """How one product is cut.

    Attributes:
        block_n: Rows of the weight in a program, a power of two from 16; gate and up rows count each.
        block_k: Columns in a step of one slice, a power of two from 16.
        k_slices: Slices of K inside a program, multiplied side by side by its warps and then added; a power of two.
        split_k: Programs that share K; the last of them adds what all found, in a fixed order.
        num_warps: Warps of a program.
        num_stages: Tiles in flight between memory and the multiplication.
        prefetch: What happens before the wait.
        unrolled: Whether a loop of few steps becomes straight code, which is longer to compile and to fetch.
    """

    block_n: int
    block_k: int
    k_slices: int = 1
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 4
    prefetch: Prefetch = "none"
    unrolled: bool = True

    def lanes(self, rows: int, dtype: torch.dtype) -> int:
        """Width of the multiplication for buffers of so many rows: warpgroup instructions want sixteen at least."""
        wide = self.block_n >= 64 and self.k_slices == 1 and self.num_warps >= 4 and dtype != torch.float32
        return max(rows, 16 if wide else 8)

    def tiles(self, num_outputs: int) -> int:
        """Programs along the rows of a weight."""
        return -(-num_outputs // self.block_n)

    def steps(self, num_inputs: int) -> int:
        """Steps along K of each program."""
        return -(-num_inputs // (self.block_k * self.k_slices * self.split_k))

    def prefetched_columns(self, num_inputs: int, element_bytes: int) -> int:
        """Columns of its part of the weight that a program has brought into the L2 cache, whole steps; 0 for none."""
        if self.prefetch != "l2" or num_inputs * element_bytes % 16:
            return 0
        step = self.block_k * self.k_slices
        most = max(1, PREFETCHED_BYTES // (self.block_n * step * element_bytes))
        return step * min(self.steps(num_inputs), most)

    def workspace_floats(self, num_outputs: int, rows: int) -> int:
        """How many float32 the programs that share K leave for the last of them."""
        return self.tiles(num_outputs) * self.split_k * self.block_n * max(rows, 16) if self.split_k > 1 else 0


def parts_of(config: MatmulConfig, hidden_size: int) -> int:
    """How many partial sums of squares a product that adds to the residual stream leaves for each lane."""
    return config.tiles(hidden_size)


def choose_matmul(
    operation: Operation, num_outputs: int, num_inputs: int, rows: int, dtype: torch.dtype = torch.bfloat16
) -> MatmulConfig:
    """Chooses how to cut a product.

    Args:
        operation: Which product.
        num_outputs: N, rows of the weight (2I for gate and up).
        num_inputs: K.
        rows: Padded width: 8, 16, 32 or 64.
        dtype: Of the weight.
    """
    if dtype == torch.float32:
        return _exact(num_outputs, num_inputs)
    known = _TABLE.get((operation, num_outputs, num_inputs, rows))
    if known is None:
        known = _rule(operation, num_outputs, num_inputs, rows)
    return known


def block_k_of(num_inputs: int, most: int = 128) -> int:
    """The widest step that divides K; where none of 32 and more does, the one that wastes least of its last."""
    block = most
    while block > 32 and num_inputs % block:
        block //= 2
    return block if num_inputs % block == 0 else min(most, _power_of_two(num_inputs))


def _rule(operation: Operation, num_outputs: int, num_inputs: int, rows: int) -> MatmulConfig:
    prefetch: Prefetch = "l2" if num_outputs * num_inputs * 2 <= _L2_BYTES else "none"
    if rows == 8 and num_outputs < _MANY_OUTPUTS:
        return _sliced(num_inputs, prefetch)
    block_n = 128 if rows >= 32 and num_outputs >= _MANY_OUTPUTS else 64
    base = MatmulConfig(block_n, block_k_of(num_inputs), num_warps=block_n // 16, num_stages=4, prefetch=prefetch)
    if operation not in _RESIDUAL:
        return base
    return replace(base, split_k=_split(base, num_outputs, num_inputs))


def _sliced(num_inputs: int, prefetch: Prefetch) -> MatmulConfig:
    """Not many outputs at eight lanes: K over the warps of a program, all loaded before the wait if it fits."""
    blocks = (256, 128, 64) if num_inputs >= _SLICES * 64 else (32, 16)
    block_k = next((block for block in blocks if num_inputs % (_SLICES * block) == 0), blocks[-1])
    config = MatmulConfig(16, block_k, k_slices=_SLICES, num_stages=3, prefetch=prefetch)
    return replace(config, prefetch="registers") if config.steps(num_inputs) <= 2 else config


def _split(base: MatmulConfig, num_outputs: int, num_inputs: int) -> int:
    """Programs along K: enough to fill the multiprocessors once, none with fewer than four steps."""
    wanted = 128 // base.tiles(num_outputs)
    split, steps = 1, base.steps(num_inputs)
    while split * 2 <= wanted and steps % (split * 2) == 0 and steps // (split * 2) >= 4:
        split *= 2
    return split


def _exact(num_outputs: int, num_inputs: int) -> MatmulConfig:
    """Float32, multiplied without tensor cores: for tests on small models, so any cut that compiles will do."""
    return MatmulConfig(16, min(32, block_k_of(num_inputs)), num_warps=4, num_stages=2)


def _power_of_two(size: int) -> int:
    return 1 << max(4, (size - 1).bit_length())


def _table() -> dict[tuple[str, int, int, int], MatmulConfig]:
    cut = MatmulConfig
    small = {
        ("qkv", 4096, 1024): {
            8: cut(16, 128, 4, 1, 4, 2, "registers"),
            16: cut(64, 128, 1, 1, 4, 4, "l2"),
            32: cut(128, 64, 1, 1, 4, 5, "l2"),
            64: cut(64, 64, 1, 1, 4, 6, "l2"),
        },
        ("output", 1024, 2048): {8: cut(16, 256, 8, 1, 8, 1, "registers"), 16: cut(64, 128, 1, 4, 4, 4, "l2")},
        ("gate_up", 6144, 1024): {8: cut(16, 256, 4, 1, 4, 1, "registers"), 16: cut(64, 128, 1, 1, 4, 4, "l2")},
        ("down", 1024, 3072): {8: cut(64, 128, 1, 4, 4, 4, "l2")},
        ("head", 151936, 1024): {8: cut(128, 64, 1, 1, 4, 5, "none")},
    }
    large = {
        ("qkv", 6144, 4096): {
            8: cut(16, 256, 4, 1, 4, 3, "none"),
            16: cut(64, 64, 1, 1, 4, 8, "none"),
            64: cut(64, 128, 1, 1, 4, 5, "none"),
        },
        ("output", 4096, 4096): {8: cut(16, 256, 4, 1, 4, 3, "l2"), 16: cut(64, 128, 1, 2, 4, 5, "none")},
        ("gate_up", 28672, 4096): {8: cut(64, 128, 1, 1, 4, 4, "none"), 32: cut(128, 128, 1, 1, 8, 4, "none")},
        ("down", 4096, 14336): {8: cut(16, 256, 4, 1, 4, 3, "none"), 16: cut(64, 128, 1, 2, 4, 5, "none")},
        ("head", 128256, 4096): {8: cut(64, 128, 1, 1, 4, 5, "none"), 32: cut(128, 128, 1, 1, 8, 4, "none")},
    }
    table = {}
    for (operation, num_outputs, num_inputs), widths in (small | large).items():
        for rows in (8, 16, 32, 64):
            of_width = max(width for width in widths if width <= rows)
            table[operation, num_outputs, num_inputs, rows] = widths[of_width]
    return table


_TABLE = _table()
