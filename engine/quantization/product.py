"""Products with a quantized matrix as torch computes them.

Letters: T rows, K inputs, N outputs.
The numbers of both formats are exact in float16 and bfloat16, so that a product of them is that of the original values
of the matrix but for its scales, which are applied to float32 sums.
"""

from __future__ import annotations

import torch

from engine.ops.packed import can_pack, pack
from engine.quantization.large import LargeProduct
from engine.quantization.matrix import QuantizedMatrix


class QuantizedProduct:
    """One matrix and the best product for it here."""

    def __init__(
        self, values: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None, *, exact: bool = False
    ) -> None:
        """Takes a matrix, which it may replace by a copy.

        Args:
            values: [N, K].
            scale: [N] float32.
            bias: [N], or None.
            exact: Results are to be float32 everywhere, as logits must be; else they may be bfloat16 on a GPU.
        """
        self._is_exact = exact
        self._scale = scale
        self._bias = None if bias is None else bias.float()
        self._large = LargeProduct(QuantizedMatrix(values, scale), bias) if values.is_cuda else None
        self._packed = pack(values.float()) if not values.is_cuda and can_pack() else None
        self._matrix = QuantizedMatrix(values, scale) if self._large is None and self._packed is None else None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes [T, N] from hidden [T, K] of any float dtype: float32, or bfloat16 on a GPU unless it is exact."""
        if self._large is not None:
            return self._large.exact(hidden) if self._is_exact else self._large(hidden)
        if self._packed is None:
            assert self._matrix is not None
            return self._matrix.product(hidden, self._bias)
        outputs = self._packed(hidden.float()) * self._scale
        return outputs if self._bias is None else outputs + self._bias
