"""Matrices with a scale an output channel.

Letters: T rows, K inputs, N outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.quantization.formats import NumberFormat, format_of


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedMatrix:
    """A matrix of which row n is `values[n] * scale[n]`.

    Attributes:
        values: [N, K] int8 or float8_e4m3fn.
        scale: [N] float32.
    """

    values: torch.Tensor
    scale: torch.Tensor

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """[N, K], rounded once if the dtype is not float32."""
        return (self.values.float() * self.scale[:, None]).to(dtype)

    def product(self, hidden: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """What the product means: [T, K] of any float dtype to [T, N] float32."""
        outputs = (hidden.float() @ self.values.float().t()) * self.scale
        return outputs if bias is None else outputs + bias.float()


def quantize(weight: torch.Tensor, number_format: NumberFormat) -> QuantizedMatrix:
    """Rounds a matrix [N, K]; each row's largest magnitude becomes the format's largest number."""
    matrix = QuantizedMatrix(
        torch.empty(weight.shape, dtype=number_format.dtype, device=weight.device),
        torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device),
    )
    quantize_into(matrix, weight)
    return matrix


def quantize_into(matrix: QuantizedMatrix, weight: torch.Tensor) -> None:
    """Rounds a matrix [N, K] into memory that is there already, which may be rows of a larger one.

    A value that is not finite makes its row's scale not finite.
    """
    number_format = format_of(matrix.values.dtype)
    assert number_format is not None
    for values, scale, rows in zip(
        torch.split(matrix.values, _ROWS), torch.split(matrix.scale, _ROWS), torch.split(weight, _ROWS), strict=True
    ):
        rows = rows.to(device=values.device)
        scale.copy_(rows.abs().amax(1).float() / number_format.most)
        values.copy_(number_format.codes(rows, scale[:, None]))


_ROWS = 8192
"""Rows that are rounded at a time: bounds the float32 copies."""
