"""A projection: one matrix, and the best product this machine has for it.

Letters: T rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from engine.ops.packed import pack
from engine.quantization.product import QuantizedProduct


class Linear:
    """Multiplies rows by a matrix."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> None:
        """Takes a matrix, which it may replace by a copy that the machine has a product for.

        Args:
            weight: [N, K].
            bias: [N], or None.
            scale: [N] float32 of a quantized matrix, or None.
        """
        self._product = _product(weight, bias, scale)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes [T, N] from hidden [T, K].

        Args:
            hidden: float32 or the weight's dtype.

        Returns:
            float32 or the weight's dtype, whichever the product gives.
        """
        return self._product(hidden)


def _product(
    weight: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    if scale is not None:
        return QuantizedProduct(weight, scale, bias)
    packed = pack(weight, bias) if weight.dtype == torch.bfloat16 else None
    if packed is not None:
        return lambda hidden: packed(hidden.float())
    return lambda hidden: functional.linear(hidden.to(weight.dtype), weight, bias)
