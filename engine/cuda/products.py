"""Products of many rows with a matrix, by the vendor's library.

Letters: T rows, K inputs, N outputs. A quantized matrix is turned into bfloat16 on the way.
"""

from __future__ import annotations

import torch

from engine.quantization.large import LargeProduct
from engine.quantization.matrix import QuantizedMatrix


def product(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """Computes rows [T, K] times weight [N, K]: [T, N] in their dtype.

    Args:
        rows: [T, K].
        weight: [N, K].
        bias: [N], or None.
        scale: [N] float32 of a quantized weight, or None.
    """
    if scale is not None:
        return LargeProduct(QuantizedMatrix(weight, scale), bias)(rows).to(rows.dtype)
    if bias is not None:
        return torch.addmm(bias, rows, weight.t())
    return torch.mm(rows, weight.t())


def exact_product(
    rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None = None, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """The same with a float32 result, which is not rounded on the way: for logits, whose near ties rounding flips.

    Args:
        rows: [T, K].
        weight: [N, K].
        out: [T, N] float32, written; None makes it.
        scale: [N] float32 of a quantized weight, or None.
    """
    if scale is not None:
        result = LargeProduct(QuantizedMatrix(weight, scale)).exact(rows)
        return result if out is None else out.copy_(result)
    if rows.dtype == torch.float32:
        return torch.mm(rows, weight.t(), out=out)
    if not rows.is_cuda:
        result = torch.mm(rows.float(), weight.t().float())
        return result if out is None else out.copy_(result)
    if out is None:
        return torch.mm(rows, weight.t(), out_dtype=torch.float32)
    torch.ops.aten.mm.dtype_out(rows, weight.t(), torch.float32, out=out)
    return out
