"""Products of many rows on a GPU: prefill, and steps wider than the kernels of `engine.cuda` take.

Letters: T rows, K inputs, N outputs.
There are two: `LargeProduct` turns the matrix into bfloat16, which costs little beside a product of thousands of rows
and rounds nothing further; `rounded_product` rounds the rows too, to the matrix's format, and multiplies with tensor
cores made for it, twice as fast and coarser. docs/performance.md shows what that costs; no step takes it by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from engine.quantization.formats import NumberFormat, format_of
from engine.quantization.matrix import QuantizedMatrix

_BLOCK_BYTES = 256 * 2**20
"""Most that a matrix takes in bfloat16 while it is multiplied by: larger ones go in blocks of rows."""

_LEAST_ROWS = 32
"""Rows that integer products of the vendor's library want at least, in multiples of 8."""


class LargeProduct:
    """Multiplies rows by a quantized matrix that is turned into bfloat16, block by block."""

    def __init__(self, matrix: QuantizedMatrix, bias: torch.Tensor | None = None) -> None:
        """Takes a matrix [N, K] and a bias [N]."""
        self._matrix = matrix
        self._bias = bias

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Computes [T, N] from hidden [T, K] of any float dtype; a product without a bias may be written to."""
        hidden = hidden.bfloat16()
        parts = [functional.linear(hidden, weight) for weight in self._blocks()]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return outputs if self._bias is None else outputs.add_(self._bias)

    def exact(self, hidden: torch.Tensor) -> torch.Tensor:
        """The same with sums that are not rounded: [T, N] float32, for logits."""
        hidden = hidden.bfloat16()
        if not hidden.is_cuda:
            return self._matrix.product(hidden, self._bias)
        parts = [torch.mm(hidden, weight.t(), out_dtype=torch.float32) for weight in self._blocks()]
        outputs = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return outputs if self._bias is None else outputs.add_(self._bias)

    def _blocks(self) -> Iterator[torch.Tensor]:
        values, scale = self._matrix.values, self._matrix.scale
        num_rows = max(1, _BLOCK_BYTES // (2 * values.shape[1]))
        for some, scales in zip(torch.split(values, num_rows), torch.split(scale, num_rows), strict=True):
            yield dequantized(some, scales)


def dequantized(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A matrix [N, K] in bfloat16; by one kernel on a GPU where there is Triton."""
    if values.is_cuda:
        try:
            from engine.cuda.kernels.bytes import dequantize
        except ImportError:  # Triton is part of torch for CUDA on Linux alone
            pass
        else:
            out = torch.empty(values.shape, dtype=torch.bfloat16, device=values.device)
            dequantize(values, scale, out)
            return out
    return QuantizedMatrix(values, scale).dequantized(torch.bfloat16)


def rounded_product(hidden: torch.Tensor, matrix: QuantizedMatrix, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiplies rows, rounded to the matrix's format with a scale each, by a matrix: [T, N] bfloat16.

    Args:
        hidden: [T, K] of any float dtype.
        matrix: [N, K]; N and K multiples of 16.
        bias: [N], or None.
    """
    number_format = format_of(matrix.values.dtype)
    assert number_format is not None
    codes, scale = _rounded(hidden, number_format)
    if number_format.dtype == torch.int8:
        num_rows = len(codes)
        padding = max(_LEAST_ROWS - num_rows, -num_rows % 8)
        sums = torch._int_mm(functional.pad(codes, (0, 0, 0, padding)), matrix.values.t())[:num_rows]
        outputs = (sums.float() * scale[:, None] * matrix.scale).bfloat16()
    else:
        outputs = torch._scaled_mm(
            codes,
            matrix.values.t(),
            scale_a=scale[:, None],
            scale_b=matrix.scale[None],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
    return outputs if bias is None else outputs.add_(bias)


def _rounded(hidden: torch.Tensor, number_format: NumberFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [T, K] and scales [T] of rows."""
    if hidden.is_cuda:
        try:
            from engine.cuda.kernels.bytes import round_rows
        except ImportError:
            pass
        else:
            codes = torch.empty(hidden.shape, dtype=number_format.dtype, device=hidden.device)
            scale = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
            round_rows(hidden.contiguous(), codes, scale)
            return codes, scale
    scale = hidden.abs().amax(1).float() / number_format.most
    return number_format.codes(hidden, scale[:, None]), scale
