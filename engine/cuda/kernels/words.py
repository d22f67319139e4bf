"""Weights as 32-bit words: how many numbers a word holds, and how they come out of it.

Loading words instead of numbers makes every load as wide as can be, keeps tiles small in registers until they are
used, and turns bfloat16 into float32 by a shift or a mask alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["FORMS", "multiply_words", "scale_sums"]

FORMS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
"""Types a weight may have, and what kernels call them."""


@triton.jit
def multiply_words(words, x, FORM: tl.constexpr):
    """Products of a tile of weights with inputs, those of a word added up.

    Args:
        words: [rows, W] int32.
        x: [W, numbers of a word] float32, inputs in the order of memory.
        FORM: One of `FORMS`.

    Returns:
        [rows, W] float32, which `scale_sums` must see once added up.
    """
    if FORM == "f32":
        products = words.to(tl.float32, bitcast=True) * tl.reshape(x, [x.shape[0]])[None, :]
    elif FORM == "bf16":
        even, odd = tl.split(x)
        low = (words << 16).to(tl.float32, bitcast=True)
        high = (words & -65536).to(tl.float32, bitcast=True)
        products = low * even[None, :] + high * odd[None, :]
    else:
        if FORM == "fp8":
            x = x * 1152921504606846976.0  # 2 ** 60, half of what `_byte` leaves out: no product is too small then
        even, odd = tl.split(tl.reshape(x, [x.shape[0], 2, 2]))
        x0, x2 = tl.split(even)
        x1, x3 = tl.split(odd)
        products = _byte(words, 24, FORM) * x0[None, :] + _byte(words, 16, FORM) * x1[None, :]
        products += _byte(words, 8, FORM) * x2[None, :]
        products += _byte(words, 0, FORM) * x3[None, :]
    return products


@triton.jit
def scale_sums(sums, FORM: tl.constexpr):
    """Sums of what `multiply_words` returned, as they would be in exact arithmetic."""
    if FORM == "fp8":
        sums = sums * 1152921504606846976.0
    return sums


@triton.jit
def _byte(words, SHIFT: tl.constexpr, FORM: tl.constexpr):
    """The number in the byte that lies `SHIFT` bits under the top one, as float32; of fp8, its `2 ** -120`th part."""
    top = words << SHIFT
    if FORM == "fp8":  # sign, 4 bits of exponent and 3 of mantissa land in float32's, of subnormal numbers too (no NaN)
        return ((top >> 4) & -2014314496).to(tl.float32, bitcast=True)
    else:
        return (top >> 24).to(tl.float32)
