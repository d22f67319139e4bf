"""Weights as 32-bit words, and inputs in step with them: number i of every word of a row is one vector.

Loading words instead of numbers makes every load as wide as can be, keeps tiles small in registers until they are
used, and turns bfloat16 into float32 by a shift or a mask alone. Inputs that come in pairs are loaded as pairs, so that
threads hold those that meet their words, and need not exchange them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["FORMS", "as_pairs", "as_words", "load_numbers", "load_words", "multiply_words", "scale_sums"]

FORMS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "int8", torch.float8_e4m3fn: "fp8"}
"""Types a weight may have, and what kernels call them."""


def as_words(weight: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A weight as 32-bit words, how many of them a row has, and how many numbers each holds.

    Args:
        weight: [N, K], contiguous.
    """
    words = weight.view(torch.int32)
    return words, words.shape[1], 4 // weight.element_size()


def as_pairs(inputs: torch.Tensor, numbers: int) -> torch.Tensor:
    """What `load_numbers` reads fastest: pairs of float32 or bfloat16 as one integer, if words hold two numbers.

    Args:
        inputs: [..., K], contiguous.
        numbers: Of a word.
    """
    if numbers == 2 and inputs.dtype in (torch.float32, torch.bfloat16):
        return inputs.view(torch.int64 if inputs.dtype == torch.float32 else torch.int32)
    return inputs


@triton.jit
def load_words(pointer, row, chunk, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """A chunk [rows, BLOCK] of a tile; zeros behind the end of a row."""
    word = chunk * BLOCK + tl.arange(0, BLOCK)
    pointers = pointer + row.to(tl.int64)[:, None] * WORDS + word[None, :]
    return tl.load(pointers) if WORDS % BLOCK == 0 else tl.load(pointers, mask=(word < WORDS)[None, :], other=0)


@triton.jit
def load_numbers(pointer, chunk, WORDS: tl.constexpr, BLOCK: tl.constexpr, NUMBERS: tl.constexpr):
    """Inputs of a chunk in step with its words, zeros behind the end.

    Args:
        pointer: To floats, or to integers that each are a pair of bfloat16 or of float32.
        chunk: Number of the chunk.
        WORDS: Of a row.
        BLOCK: Words of a chunk.
        NUMBERS: Of a word.

    Returns:
        As many vectors [BLOCK] float32 as a word has numbers.
    """
    word = chunk * BLOCK + tl.arange(0, BLOCK)
    if pointer.dtype.element_ty == tl.int32:
        pairs = _load_vector(pointer + word, word < WORDS, WORDS % BLOCK == 0)
        return (_low_half(pairs), _high_half(pairs))
    elif pointer.dtype.element_ty == tl.int64:
        pairs = _load_vector(pointer + word, word < WORDS, WORDS % BLOCK == 0)
        return (
            pairs.to(tl.int32).to(tl.float32, bitcast=True),
            (pairs >> 32).to(tl.int32).to(tl.float32, bitcast=True),
        )
    elif NUMBERS == 1:
        return (_load_vector(pointer + word, word < WORDS, WORDS % BLOCK == 0).to(tl.float32),)
    else:
        place = word[:, None] * NUMBERS + tl.arange(0, NUMBERS)[None, :]
        numbers = _load_vector(pointer + place, place < WORDS * NUMBERS, WORDS % BLOCK == 0).to(tl.float32)
        if NUMBERS == 2:
            return tl.split(numbers)
        else:
            even, odd = tl.split(tl.reshape(numbers, [BLOCK, 2, 2]))
            first, third = tl.split(even)
            second, fourth = tl.split(odd)
            return (first, second, third, fourth)


@triton.jit
def multiply_words(words, inputs, FORM: tl.constexpr):
    """Products of a tile of weights with inputs, those of a word added up.

    Args:
        words: [rows, W] int32.
        inputs: As `load_numbers` returns them, [W] each.
        FORM: One of `FORMS`.

    Returns:
        [rows, W] float32, which `scale_sums` must see once added up.
    """
    if FORM == "f32":
        products = words.to(tl.float32, bitcast=True) * inputs[0][None, :]
    elif FORM == "bf16":
        products = _low_half(words) * inputs[0][None, :] + _high_half(words) * inputs[1][None, :]
    else:
        # half of what `_byte` leaves out, so that no product is too small for float32, and none too large
        gain = 1152921504606846976.0 if FORM == "fp8" else 1.0  # 2 ** 60
        products = _byte(words, 24, FORM) * (inputs[0] * gain)[None, :]
        products += _byte(words, 16, FORM) * (inputs[1] * gain)[None, :]
        products += _byte(words, 8, FORM) * (inputs[2] * gain)[None, :]
        products += _byte(words, 0, FORM) * (inputs[3] * gain)[None, :]
    return products


@triton.jit
def scale_sums(sums, FORM: tl.constexpr):
    """Sums of what `multiply_words` returned, as they would be in exact arithmetic."""
    return sums * 1152921504606846976.0 if FORM == "fp8" else sums


@triton.jit
def _load_vector(pointers, inside, EVEN: tl.constexpr):
    """Loads all, or zeros where not `inside`."""
    return tl.load(pointers) if EVEN else tl.load(pointers, mask=inside, other=0)


@triton.jit
def _low_half(words):
    return (words << 16).to(tl.float32, bitcast=True)


@triton.jit
def _high_half(words):
    return (words & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _byte(words, SHIFT: tl.constexpr, FORM: tl.constexpr):
    """The number in the byte that lies `SHIFT` bits under the top one, as float32; of fp8, its `2 ** -120`th part."""
    top = words << SHIFT
    if FORM == "fp8":  # sign, 4 bits of exponent and 3 of mantissa land in float32's, of subnormal numbers too (no NaN)
        return ((top >> 4) & -2014314496).to(tl.float32, bitcast=True)
    else:
        return (top >> 24).to(tl.float32)
