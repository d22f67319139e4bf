"""Products of many rows on a GPU: prefill, and steps wider than the kernels of `engine.cuda` take.

Letters: T rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from engine.quantization.matrix import QuantizedMatrix

_BLOCK_BYTES = 256 * 2**20
"""Most that a matrix takes while it is multiplied by: larger ones go in blocks of rows."""


class LargeProduct:
    """Multiplies rows by a quantized matrix that is turned into bfloat16 block by block.

    A matrix is read once as codes, written once and read once as bfloat16; beside a product of thousands of rows that
    is little, and inputs are not rounded further than to bfloat16.
    """

    def __init__(self, matrix: QuantizedMatrix, bias: torch.Tensor | None = None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes [T, N] in bfloat16 from hidden [T, K] of any float dtype."""
        hidden = hidden.bfloat16()
        parts = [functional.linear(hidden, weight) for weight in self._blocks()]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return outputs if self._bias is None else outputs.add_(self._bias)

    def _blocks(self) -> Iterator[torch.Tensor]:
        values, scale = self._matrix.values, self._matrix.scale
        num_rows = max(1, _BLOCK_BYTES // (4 * values.shape[1]))
        for some, scales in zip(torch.split(values, num_rows), torch.split(scale, num_rows), strict=True):
            yield QuantizedMatrix(some, scales).dequantized(torch.bfloat16)
