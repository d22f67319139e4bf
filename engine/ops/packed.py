"""float16-packed products on x86: float32 in, float32 out, at the speed of reading the weights.

For few rows oneDNN's bfloat16 product reads weights at a third of what memory gives; FBGEMM's packed float16 product
reads at full speed. bfloat16 weights survive the change of format: float16 has more mantissa bits, and what lies below
its normal range is rounded by at most 2**-25.
Activations stay in float32, and a row's result is the same to the bit whatever the other rows are. Logits therefore do
not depend on how a prompt was cut, on the cache or on who shares the step; rounding activations to bfloat16 anywhere
lets differences of 1e-7 grow to 1e-2 over the layers. That is worth more here than bfloat16's speed on long prompts:
measured on two Zen 4 cores, microseconds for [T, 576] x [576, 3072], bfloat16 / packed: T=1 514/182, T=8 810/438,
T=16 804/714, T=32 1040/1303, T=512 9588/18134.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

_FLOAT16_MAX = 65504.0

_MOST_TRIED = 120
"""Rows with which `row_unit` looks for a difference."""


class PackedMatrix:
    """A matrix packed for `[T, K] x [K, N]`; two bytes an element."""

    def __init__(self, packed: Any) -> None:
        self._packed = packed
        self._multiply = torch.ops.quantized.linear_dynamic_fp16

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Multiplies hidden [T, K] float32 and adds the bias, if one was packed; returns [T, N] float32."""
        num_rows = len(hidden)
        missing = -num_rows % row_unit()
        if missing:
            hidden = functional.pad(hidden, (0, 0, 0, missing))
        product: torch.Tensor = self._multiply(hidden, self._packed)
        return product[:num_rows]


def pack(matrix: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix | None:
    """Packs a matrix, or returns None where this machine or these values do not allow it.

    Args:
        matrix: [N, K] on the CPU.
        bias: [N], or None.
    """
    if matrix.device.type != "cpu" or not can_pack() or matrix.abs().max() > _FLOAT16_MAX:
        return None
    return PackedMatrix(_prepack(matrix, bias))


@functools.cache
def can_pack() -> bool:
    """Whether this build of torch has the product and it computes what it should; other processors lack it."""
    matrix = torch.linspace(-1, 1, 64).view(4, 16).bfloat16()
    hidden = torch.linspace(-2, 2, 32).view(2, 16)
    try:
        product = PackedMatrix(_prepack(matrix, torch.ones(4)))(hidden)
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return torch.allclose(product, hidden @ matrix.float().t() + 1, atol=1e-4)


@functools.cache
def row_unit() -> int:
    """Rows are filled up to a multiple of this, so that each is the same to the bit whatever the others are.

    FBGEMM cuts rows into blocks, each with a kernel of its own. Those for AVX2 that take one or two rows, which are
    left over where others have taken five or six, add up in another order than all the rest.
    """
    multiply = torch.ops.quantized.linear_dynamic_fp16
    random = torch.Generator().manual_seed(0)
    packed = _prepack(torch.randn((64, 96), generator=random), None)
    hidden = torch.randn((_MOST_TRIED, 96), generator=random)
    together = multiply(hidden, packed)
    for unit in (1, 2, 3, 4, 6):
        sizes = range(unit, _MOST_TRIED, unit)
        if all(torch.equal(multiply(hidden[:size], packed), together[:size]) for size in sizes):
            return unit
    return 1


def _prepack(matrix: torch.Tensor, bias: torch.Tensor | None) -> Any:
    return torch.ops.quantized.linear_prepack_fp16(matrix.float(), None if bias is None else bias.float())
