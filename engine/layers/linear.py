"""A projection: one matrix, and the product that suits the number of rows.

Letters: T rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.ops.packed import NARROW_ROWS, pack


class Linear:
    """Multiplies rows by a matrix kept in the model's dtype."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, packed: bool = False) -> None:
        """Takes a weight [N, K] and a bias [N] without copying them.

        Args:
            weight: The matrix.
            bias: Added to each row, or None.
            packed: Keep a second, packed copy for narrow steps where the machine has a product for it.
        """
        self._weight = weight
        self._bias = bias
        self._packed = pack(weight, bias) if packed and weight.dtype == torch.bfloat16 else None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes [T, N] from hidden [T, K].

        Args:
            hidden: float32 or the weight's dtype.

        Returns:
            float32 or the weight's dtype, whichever the product gives.
        """
        if self._packed is not None and hidden.shape[0] <= NARROW_ROWS:
            return self._packed(hidden.float())
        return functional.linear(hidden.to(self._weight.dtype), self._weight, self._bias)
