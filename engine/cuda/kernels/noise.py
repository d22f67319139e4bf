"""The keyed noise of a draw, in kernels: what `engine.sampling.random` computes, bit for bit, and scores made of it.

Scores come in two precisions. float32 finds the few tokens that may win; where more than one may, float64 decides, as
`engine.sampling.draw` does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.sampling.random import UNIFORM_SCALE

GAMMA: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15)
MIX64_A: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9)
MIX64_B: tl.constexpr = tl.constexpr(0x94D049BB133111EB)
MIX32_A: tl.constexpr = tl.constexpr(0x7FEB352D)
MIX32_B: tl.constexpr = tl.constexpr(0x846CA68B)
SIGN_BIT: tl.constexpr = tl.constexpr(0x80000000)
MINUS_SCALE: tl.constexpr = tl.constexpr(-UNIFORM_SCALE)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)
SERIES_END: tl.constexpr = tl.constexpr(0.0625)
GREATEST: tl.constexpr = tl.constexpr(3.0e38)


@triton.jit
def position_key(stream_key, position):
    """Low and high half, uint32, of the key of a stream (int64) at a position (any integer)."""
    place = (position.to(tl.int64) + 1).to(tl.uint64, bitcast=True)
    key = stream_key.to(tl.uint64, bitcast=True) + place * GAMMA
    key = (key ^ (key >> 30)) * MIX64_A
    key = (key ^ (key >> 27)) * MIX64_B
    key = key ^ (key >> 31)
    return (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)


@triton.jit
def uniform_noise(ids, low, high):
    """The noise m of `uniform_bits`, negated, as float32 for each of the token ids."""
    value = ids.to(tl.uint32)
    value = (value ^ (value >> 16)) * MIX32_A
    value = (value ^ (value >> 15)) * MIX32_B
    value = value ^ (value >> 16)
    value = (value ^ low) * MIX32_A
    value = value ^ (value >> 15) ^ high
    value = (value * MIX32_B) | SIGN_BIT
    return value.to(tl.int32, bitcast=True).to(tl.float32)


@triton.jit
def score(logits, ids, low, high, temperature):
    """logits / temperature plus Gumbel noise, float32: within `slack` of what `exact_score` gives, -inf for -inf."""
    uniform = uniform_noise(ids, low, high) * MINUS_SCALE
    # log1p: a series where 1 - u would round away what decides a draw.
    series = uniform * (1.0 + uniform * (1 / 2 + uniform * (1 / 3 + uniform * (1 / 4 + uniform * (1 / 5)))))
    exponential = tl.where(uniform < SERIES_END, series, tl.log2(1.0 - uniform) * -LN2)
    scaled = tl.minimum(tl.maximum(logits * (1.0 / temperature), -GREATEST), GREATEST)
    return tl.where(logits == float("-inf"), logits, scaled - tl.log2(exponential) * LN2)


@triton.jit
def slack(best):
    """How far below a score in float32 another token's may be that is in truth greater."""
    return 4e-5 + 1e-6 * tl.abs(best)


@triton.jit
def exact_score(logits, ids, low, high, temperature):
    """The same in float64."""
    uniform = uniform_noise(ids, low, high).to(tl.float64) * MINUS_SCALE
    rest = 1.0 - uniform
    exponential = -tl.log(rest) * (uniform / (1.0 - rest))  # log1p as Kahan writes it: the quotient mends the rounding
    return logits.to(tl.float64) / temperature.to(tl.float64) - tl.log(exponential)
