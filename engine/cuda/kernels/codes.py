"""K and V in one byte a number, within kernels that write and read them; the format is that of `engine.quantization`.

Letters: N vectors, D head_dim, P pages, S page_size, G key/value heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.bytes import round_to_even
from engine.kv.storage import KVStorage


@dataclass(frozen=True, slots=True, eq=False)
class KVCodes:
    """What belongs to a layer's codes.

    Attributes:
        scales: [2, P, G, S] bfloat16.
        pairs: [2, P, G, S / 2] int32, the same memory: what kernels ask for ahead has four bytes at least. None where
            pages have an odd number of slots.
        mean, spread: [G, D] float32, what is taken out of keys before they are rounded.
        most: Greatest magnitude of a code.
        whole: Codes are whole numbers.
    """

    scales: torch.Tensor
    pairs: torch.Tensor | None
    mean: torch.Tensor
    spread: torch.Tensor
    most: float
    whole: bool

    @classmethod
    def of(cls, storage: KVStorage, layer: int) -> KVCodes | None:
        """Those of a layer; None where K and V are kept as they are."""
        if storage.format is None or storage.smoothing is None:
            return None
        mean, spread = storage.smoothing.mean[layer], storage.smoothing.scale[layer]
        scales = storage.scales[layer]
        pairs = None if storage.page_size % 2 else scales.view(torch.int32)
        return cls(scales, pairs, mean, spread, storage.format.most, storage.dtype == torch.int8)


@triton.jit
def scale_of(vectors, MOST: tl.constexpr):
    """The scale of each vector [N, D] float32, which must hold zeros past its end: [N] float32, exact in bfloat16."""
    bits = (tl.max(tl.abs(vectors), 1) / MOST).to(tl.int32, bitcast=True)
    # To the nearest, ties to even, as torch does it; interpreted, a conversion would cut the number off.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def encode(vectors, scale, MOST: tl.constexpr, WHOLE: tl.constexpr):
    """Codes of vectors [N, D] by their scales [N], float32 yet."""
    codes = vectors / tl.where(scale == 0.0, 1.0, scale)[:, None]
    if WHOLE:
        codes = round_to_even(codes)
    return tl.minimum(tl.maximum(codes, -MOST), MOST)


@triton.jit
def scales_of_pairs(pairs, visible, BLOCK: tl.constexpr, HEADS: tl.constexpr):
    """Scales of a tile's columns [BLOCK * HEADS], tokens outside and heads inside, float32; 0 where not visible.

    Args:
        pairs: [BLOCK * HEADS / 2] int32, of two tokens each, heads inside.
        visible: [BLOCK * HEADS], columns.
    """
    both = tl.join((pairs << 16).to(tl.float32, bitcast=True), (pairs & -65536).to(tl.float32, bitcast=True))
    if HEADS > 1:
        both = tl.permute(tl.reshape(both, [BLOCK // 2, HEADS, 2]), [0, 2, 1])
    return tl.where(visible, tl.reshape(both, [BLOCK * HEADS]), 0.0)
