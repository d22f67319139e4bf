"""The last product of a decoder: hidden rows to float32 logits, whatever the weights' dtype.

Letters: R rows, E hidden_size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from engine.ops.packed import pack
from engine.quantization.product import QuantizedProduct


class LMHead:
    """Logits over the vocabulary. Rounding them to bfloat16 would flip near ties, so no form of it does."""

    def __init__(self, matrix: torch.Tensor, scale: torch.Tensor | None = None) -> None:
        """Takes the head's matrix, which it may keep or copy.

        Args:
            matrix: [V, E].
            scale: [V] float32 of a quantized matrix, or None.
        """
        self._product = _product(matrix) if scale is None else QuantizedProduct(matrix, scale, exact=True)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes logits.

        Args:
            hidden: [R, E] float32.

        Returns:
            [R, V] float32.
        """
        return self._product(hidden)


def _product(matrix: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Finds the fastest product of this device whose result is float32."""
    if matrix.dtype == torch.float32:
        return lambda hidden: functional.linear(hidden, matrix)
    if matrix.is_cuda:
        transposed = matrix.t()
        return lambda hidden: torch.mm(hidden.to(matrix.dtype), transposed, out_dtype=torch.float32)
    # torch has no bfloat16 product with a float32 result on the CPU. For V=49152, E=576 on two Zen 4 cores, in ms at 1
    # and 32 rows: packed float16 2.5 / 21, a float32 copy 15 / 58, a copy made block by block each step 14 / 36.
    packed = pack(matrix)
    if packed is not None:
        return packed
    copy = matrix.float()
    return lambda hidden: functional.linear(hidden, copy)
