"""The last product of a decoder: hidden rows to float32 logits, whatever the weights' dtype.

Letters: R rows, E hidden_size, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional


class LMHead:
    """Logits over the vocabulary. Rounding them to bfloat16 would flip near ties, so no form of it does."""

    def __init__(self, matrix: torch.Tensor) -> None:
        """Takes the head's matrix [V, E], which it may keep or copy."""
        self._out_dtype = matrix.is_cuda and matrix.dtype != torch.float32
        self._matrix = matrix if self._out_dtype else matrix.float()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes logits.

        Args:
            hidden: [R, E] float32.

        Returns:
            [R, V] float32.
        """
        if self._out_dtype:
            return torch.mm(hidden.to(self._matrix.dtype), self._matrix.t(), out_dtype=torch.float32)
        return functional.linear(hidden, self._matrix)
