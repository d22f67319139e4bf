"""Between bfloat16 and one byte a number: matrices that a large product is about to read, rows that it multiplies.

Letters: T rows, N outputs, K inputs. Formats and scales are those of `engine.quantization`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def round_to_even(values):
    """The nearest whole numbers to float32 values of less than 2**22, ties to even."""
    # At this size a float32 has no bits left behind the point.
    return (values + 12582912.0) - 12582912.0


@triton.jit
def _dequantize(values_ptr, scale_ptr, out_ptr, K, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = columns < K
    values = tl.load(values_ptr + row * K + columns, mask=keep, other=0.0).to(tl.float32) * tl.load(scale_ptr + row)
    tl.store(out_ptr + row * K + columns, values.to(out_ptr.dtype.element_ty), mask=keep)


@triton.jit
def _round_rows(rows_ptr, codes_ptr, scale_ptr, K, MOST: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    keep = columns < K
    values = tl.load(rows_ptr + row * K + columns, mask=keep, other=0.0).to(tl.float32)
    scale = tl.max(tl.abs(values), 0) / MOST
    tl.store(scale_ptr + row, scale)
    codes = values / tl.where(scale == 0, 1.0, scale)
    if WHOLE:
        codes = round_to_even(codes)
    codes = tl.minimum(tl.maximum(codes, -MOST), MOST)
    tl.store(codes_ptr + row * K + columns, codes.to(codes_ptr.dtype.element_ty), mask=keep)


def dequantize(values: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """Writes `values[n, k] * scale[n]`.

    Args:
        values: [N, K] int8 or float8_e4m3fn, contiguous.
        scale: [N] float32.
        out: [N, K] of any float dtype, contiguous.
    """
    num_rows, width = values.shape
    block = min(_BLOCK, triton.next_power_of_2(width))
    _dequantize[(num_rows, triton.cdiv(width, block))](values, scale, out, width, BLOCK=block, num_warps=8)


def round_rows(rows: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Rounds rows, each with the scale that makes its largest magnitude the format's.

    Args:
        rows: [T, K] of any float dtype, contiguous.
        codes: [T, K] int8 or float8_e4m3fn, contiguous, written.
        scale: [T] float32, written.
    """
    num_rows, width = rows.shape
    whole = codes.dtype == torch.int8
    block = triton.next_power_of_2(width)
    _round_rows[(num_rows,)](
        rows, codes, scale, width, MOST=127.0 if whole else 448.0, WHOLE=whole, BLOCK=block, num_warps=8
    )
