"""Operations of device programs in kernels, where Triton's own would give other bits than torch does.

Numbers are float32, int64 or truth values, one or a block of them; what each operation means is defined by
`engine.programs.reference`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels.noise import MINUS_SCALE, position_key, uniform_noise
from engine.programs.reference import GREATEST_INT

__all__ = [
    "floor",
    "floor_divide",
    "hashed_uniform",
    "key_at",
    "keyed_uniform",
    "maximum",
    "minimum",
    "modulo",
    "negative",
    "to_int",
]

GREATEST: tl.constexpr = tl.constexpr(float(GREATEST_INT))


@triton.jit
def negative(x):
    """-x of floats: Triton subtracts from 0, which loses the sign of zeros."""
    return x * -1.0


@triton.jit
def maximum(x, y):
    """The greater of two floats; NaN if one is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """The lesser of two floats; NaN if one is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def floor(x):
    """The greatest whole number not above a float."""
    found = tl.floor(x)
    return tl.where((x < 0) & (found == 0), -1.0, found)  # numbers next to zero, which a GPU takes for zero here


@triton.jit
def to_int(x):
    """A float cut towards zero, as `engine.programs.torch_operations.to_int` does it."""
    known = tl.where(x != x, 0.0, x)
    return tl.minimum(tl.maximum(known, -GREATEST), GREATEST).to(tl.int64)


@triton.jit
def _safe(divisor):
    """What processors can divide by."""
    return tl.where((divisor == 0) | (divisor == -1), 1, divisor)


@triton.jit
def _is_rounded_up(rest, divisor):
    """Whether a quotient cut towards zero lies above the true one."""
    return (rest != 0) & ((rest < 0) != (divisor < 0))


@triton.jit
def floor_divide(x, y):
    """Whole quotient of int64 rounded down; 0 where y is 0."""
    divisor = _safe(y)
    quotient = x // divisor  # cut towards zero
    quotient = tl.where(_is_rounded_up(x - quotient * divisor, divisor), quotient - 1, quotient)
    return tl.where(y == 0, 0, tl.where(y == -1, -x, quotient))


@triton.jit
def modulo(x, y):
    """What `floor_divide` leaves."""
    divisor = _safe(y)
    rest = x % divisor  # with the sign of x
    rest = tl.where(_is_rounded_up(rest, divisor), rest + divisor, rest)
    return tl.where((y == 0) | (y == -1), 0, rest)


@triton.jit
def key_at(stream_key, position):
    """Key of a stream, int64, at a position, as one int64."""
    low, high = position_key(stream_key, position)
    return (low.to(tl.uint64) | (high.to(tl.uint64) << 32)).to(tl.int64, bitcast=True)


@triton.jit
def keyed_uniform(ids, key, NUMBER: tl.constexpr):
    """Uniform numbers of a program's draw of this number, for token ids, with the key of the position, int64."""
    if NUMBER == 0:
        bits = key.to(tl.uint64, bitcast=True)
        low, high = (bits & 0xFFFFFFFF).to(tl.uint32), (bits >> 32).to(tl.uint32)
    else:
        low, high = position_key(key, tl.full((), NUMBER - 1, tl.int64))
    return uniform_noise(ids, low, high) * MINUS_SCALE


@triton.jit
def hashed_uniform(ids, name):
    """Uniform numbers that depend on token ids and a name, int64, alone."""
    low, high = position_key(name, tl.full((), 0, tl.int64))
    return uniform_noise(ids, low, high) * MINUS_SCALE
