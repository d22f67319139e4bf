"""A projection: one matrix, and the best product this machine has for it.

Letters: T rows, K inputs, N outputs.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.ops.packed import pack


class Linear:
    """Multiplies rows by a matrix."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Takes a weight [N, K] and a bias [N]; a packed copy replaces them where the machine has a product for it."""
        self._packed = pack(weight, bias) if weight.dtype == torch.bfloat16 else None
        self._weight = weight if self._packed is None else None
        self._bias = bias if self._packed is None else None

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes [T, N] from hidden [T, K].

        Args:
            hidden: float32 or the weight's dtype.

        Returns:
            float32 or the weight's dtype, whichever the product gives.
        """
        if self._packed is not None:
            return self._packed(hidden.float())
        assert self._weight is not None
        return functional.linear(hidden.to(self._weight.dtype), self._weight, self._bias)
