"""What distributions look like: their likeliest tokens, sum and entropy, in two kernels.

One kernel cuts every lane's vocabulary into chunks and keeps of each the likeliest tokens; one picks the likeliest of
those. A lane that nobody wants to see costs nearly nothing.

Letters: M lanes, V vocabulary, C chunks, K tokens kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels.pdl import launch_dependents, wait
from engine.cuda.kernels.tokens import load_logits

__all__ = ["look_chunks", "look_rows"]

LEAST: tl.constexpr = tl.constexpr(-3.4e38)
"""Below every logit; what -inf counts as where something is taken from it."""
LEAST_LOGPROB: tl.constexpr = tl.constexpr(-9999.0)
"""That of `engine.sampling.logprobs`."""
NO_KEY: tl.constexpr = tl.constexpr(-(2**63))
"""Less than the key of any token."""


@triton.jit
def _keys(values, ids, V: tl.constexpr):
    """Integers [*], greater for greater logits and for lower ids among equals."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return tl.where(ids < V, (order << 32) | (V - 1 - ids).to(tl.int64), NO_KEY)


@triton.jit(do_not_specialize_on_alignment=["wanted_ptr"])
def look_chunks(
    logits_ptr,
    wanted_ptr,
    maxima_ptr,
    sums_ptr,
    moments_ptr,
    keys_ptr,
    C: tl.constexpr,
    V: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Writes what chunks of logits come to.

    Of each chunk its greatest logit, the sum of exp(logit - greatest), and that of the same times (logit - greatest),
    all [M, C] float32; keys of its likeliest tokens [M, C, K] int64.
    """
    chunk, lane = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    launch_dependents(PDL)
    if tl.load(wanted_ptr + lane) == 0:
        return
    ids = chunk * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(logits_ptr + lane.to(tl.int64) * V, ids, V)
    greatest = tl.maximum(tl.max(values, 0), LEAST)
    below = tl.maximum(values, LEAST) - greatest
    weights = tl.where(values >= LEAST, tl.exp(below), 0.0)
    place = lane * C + chunk
    tl.store(maxima_ptr + place, greatest)
    tl.store(sums_ptr + place, tl.sum(weights, 0))
    tl.store(moments_ptr + place, tl.sum(tl.where(weights > 0.0, weights * below, 0.0), 0))
    likeliest = tl.topk(_keys(values, ids, V), K)
    tl.store(keys_ptr + place.to(tl.int64) * K + tl.arange(0, K), likeliest)


@triton.jit(do_not_specialize_on_alignment=["wanted_ptr"])
def look_rows(
    wanted_ptr,
    maxima_ptr,
    sums_ptr,
    moments_ptr,
    keys_ptr,
    out_ptr,
    C: tl.constexpr,
    CHUNKS: tl.constexpr,
    KEYS: tl.constexpr,
    V: tl.constexpr,
    K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Writes what lanes' distributions look like: [M, 2 + 2 * K] int32, see `engine.sampling.looks`."""
    lane = tl.program_id(0)
    wait(PDL)
    launch_dependents(PDL)
    if tl.load(wanted_ptr + lane) == 0:
        return
    chunk = tl.arange(0, CHUNKS)
    place = lane * C + chunk
    maxima = tl.load(maxima_ptr + place, mask=chunk < C, other=LEAST)
    greatest = tl.max(maxima, 0)
    shifts = maxima - greatest
    weights = tl.where(shifts > -200.0, tl.exp(shifts), 0.0)
    sums = tl.load(sums_ptr + place, mask=chunk < C, other=0.0) * weights
    moments = tl.load(moments_ptr + place, mask=chunk < C, other=0.0) * weights
    total = tl.sum(sums, 0)
    log_sum = tl.log(tl.maximum(total, 1e-30))
    mean = tl.sum(moments + tl.where(sums > 0.0, sums * shifts, 0.0), 0) / tl.maximum(total, 1e-30)
    entropy = tl.where(total > 0.0, tl.maximum(log_sum - mean, 0.0), 0.0)
    log_total = tl.where(total > 0.0, greatest + log_sum, float("-inf"))

    at = tl.arange(0, KEYS)
    keys = tl.load(keys_ptr + lane.to(tl.int64) * C * K + at, mask=at < C * K, other=NO_KEY)
    likeliest = tl.topk(keys, K)
    order = (likeliest >> 32).to(tl.int32)
    values = (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    logprobs = values - log_total
    logprobs = tl.where(logprobs >= LEAST_LOGPROB, logprobs, LEAST_LOGPROB)  # -inf and NaN too
    out = out_ptr + lane * (2 + 2 * K)
    tl.store(out, log_total.to(tl.int32, bitcast=True))
    tl.store(out + 1, entropy.to(tl.int32, bitcast=True))
    tl.store(out + 2 + tl.arange(0, K), (V - 1 - (likeliest & 0xFFFFFFFF)).to(tl.int32))
    tl.store(out + 2 + K + tl.arange(0, K), logprobs.to(tl.int32, bitcast=True))
