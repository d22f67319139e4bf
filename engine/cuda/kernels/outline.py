"""What log-probabilities are made of, in one pass over the logits.

Letters: R rows, V vocabulary, C chunks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels.tokens import load_logits

__all__ = ["outline_chunks"]


@triton.jit
def outline_chunks(
    logits_ptr,
    targets_ptr,
    maxima_ptr,
    sums_ptr,
    ranks_ptr,
    chosen_ptr,
    keys_ptr,
    C: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_KEYS: tl.constexpr,
):
    """Writes what rows of logits come to, chunk by chunk.

    Of each chunk: its greatest logit, the sum of exp(logit - greatest), and how many of its tokens come before the
    row's target, all [R, C]. Of each row the target's logit [R]. Of each token an integer of the same order [R, V].
    """
    chunk, row = tl.program_id(0), tl.program_id(1)
    row_ptr = logits_ptr + row.to(tl.int64) * V
    ids = chunk * BLOCK + tl.arange(0, BLOCK)
    values = load_logits(row_ptr, ids, V)
    target = tl.load(targets_ptr + row)
    chosen = load_logits(row_ptr, target, V)
    greatest = tl.max(values, 0)
    place = row * C + chunk
    tl.store(maxima_ptr + place, greatest)
    tl.store(sums_ptr + place, tl.sum(tl.exp(values - tl.maximum(greatest, -3.4e38)), 0))
    is_before = (values > chosen) | ((values == chosen) & (ids < target))
    tl.store(ranks_ptr + place, tl.sum((is_before & (ids < V)).to(tl.int32), 0))
    if chunk == 0:
        tl.store(chosen_ptr + row, chosen)
    if HAS_KEYS:
        # Greater for greater logits, and for lower ids among equals.
        bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
        order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
        tl.store(keys_ptr + row.to(tl.int64) * V + ids, (order << 32) | (V - 1 - ids).to(tl.int64), mask=ids < V)
