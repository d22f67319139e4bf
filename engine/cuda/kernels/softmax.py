"""A softmax over tiles of keys, and one whose parts several programs have computed.

Letters: N rows of queries, C columns (keys) of a tile, D head_dim, P parts of one result.
A row's state is its peak (the highest score so far, in units of log 2), the sum of the exponentials and the mix of the
values they weigh; arXiv 2205.14135. Parts are merged by the logarithm of their sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels.tiles import INTERPRETED

LOWEST = tl.constexpr(-1e30)
"""Peak of a row that has seen nothing: finite, so that no difference with minus infinity is NaN."""


@triton.jit
def load_rows(base_ptr, offsets, visible, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows of D numbers at `offsets` [C], padded to WIDTH; zeros where a row is not visible (None: all are)."""
    dims = tl.arange(0, WIDTH)
    at = base_ptr + offsets[:, None] + dims[None, :]
    if visible is None:
        if D == WIDTH:
            return tl.load(at)
        else:
            return tl.load(at, mask=(dims < D)[None, :], other=0.0)
    elif D == WIDTH:
        return tl.load(at, mask=visible[:, None], other=0.0)
    else:
        return tl.load(at, mask=visible[:, None] & (dims < D)[None, :], other=0.0)


@triton.jit
def product(left, right, total):
    """Adds a matrix product to `total`; float32 stays exact."""
    if INTERPRETED:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total)
    else:
        return tl.dot(left, right, total, input_precision="ieee")


@triton.jit
def score(query, keys):
    """Scores of rows [N, D] with keys [C, D], without the factor: [N, C] float32."""
    return product(query, tl.trans(keys), tl.zeros([query.shape[0], keys.shape[0]], tl.float32))


@triton.jit
def fold(scores, values, scale, peak, total, mixed, value_scales=None):
    """Folds one tile into the rows' state.

    Args:
        scores: [N, C] float32, minus infinity where a row sees nothing.
        values: [C, D].
        scale: Factor on the scores, times log2(e); positive.
        peak, total, mixed: [N], [N] and [N, D] float32.
        value_scales: [C] float32, factors on the values; None where they have none.
    """
    highest = tl.maximum(peak, tl.max(scores, 1) * scale)
    weights = tl.exp2(scores * scale - highest[:, None])
    shrink = tl.exp2(peak - highest)
    total = total * shrink + tl.sum(weights, 1)
    if value_scales is not None:
        weights = weights * value_scales[None, :]
    mixed = product(weights.to(values.dtype), values, mixed * shrink[:, None])
    return highest, total, mixed


@triton.jit
def attend(query, keys, values, visible, scale, peak, total, mixed, key_scales=None, value_scales=None):
    """Folds one tile of keys, of which each row sees those `visible` [N, C] or [1, C], into the rows' state."""
    scores = score(query, keys)
    if key_scales is not None:
        scores = scores * key_scales[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    return fold(scores, values, scale, peak, total, mixed, value_scales)


@triton.jit
def store_part(parts_ptr, sums_ptr, rows, keep, peak, total, mixed, D: tl.constexpr, WIDTH: tl.constexpr):
    """Stores the state of rows as one part: mixes [N, D] at `parts_ptr + rows * D`, log-sums at `sums_ptr + rows`."""
    dims = tl.arange(0, WIDTH)
    divisor = tl.where(total > 0.0, total, 1.0)
    at = parts_ptr + rows[:, None] * D + dims[None, :]
    tl.store(at, (mixed / divisor[:, None]).to(parts_ptr.dtype.element_ty), mask=keep[:, None] & (dims < D)[None, :])
    tl.store(sums_ptr + rows, tl.where(total > 0.0, peak + tl.log2(divisor), LOWEST), mask=keep)


@triton.jit
def arrive_last(counter_ptr, num_parts):
    """Says that this program's part is stored; true in the last of `num_parts` programs."""
    tl.debug_barrier()  # all threads have stored before one of them says so
    arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return arrived == num_parts - 1


@triton.jit
def merge_parts(
    parts_ptr,
    sums_ptr,
    num_parts,
    rows,
    keep,
    stride,
    D: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    ONCE: tl.constexpr,
):
    """Merges stored parts: [N, WIDTH] float32.

    Args:
        parts_ptr, sums_ptr: Where the first part lies.
        num_parts: P, at most PARTS.
        rows: [N] rows within a part.
        keep: [N], which of them there are.
        stride: Rows from one part to the next.
        PARTS: Most parts there can be, a power of two.
        ONCE: Parts loaded at a time, a power of two, at most PARTS.
    """
    dims = tl.arange(0, WIDTH)
    any_part = tl.arange(0, PARTS)
    all_there = (any_part < num_parts)[:, None] & keep[None, :]
    all_at = sums_ptr + any_part[:, None] * stride + rows[None, :]
    all_sums = tl.load(all_at, mask=all_there, other=LOWEST, cache_modifier=".cg")
    peak = tl.max(all_sums, 0)
    total = tl.sum(tl.exp2(all_sums - peak[None, :]), 0)
    merged = tl.zeros([rows.shape[0], WIDTH], tl.float32)
    for first in tl.range(0, num_parts, ONCE):
        part = first + tl.arange(0, ONCE)
        there = (part < num_parts)[:, None] & keep[None, :]
        sums = tl.load(
            sums_ptr + part[:, None] * stride + rows[None, :], mask=there, other=LOWEST, cache_modifier=".cg"
        )
        at = parts_ptr + (part[:, None, None] * stride + rows[None, :, None]) * D + dims[None, None, :]
        kept = there[:, :, None] & (dims < D)[None, None, :]
        mixes = tl.load(at, mask=kept, other=0.0, cache_modifier=".cg").to(tl.float32)
        merged += tl.sum(mixes * tl.exp2(sums - peak[None, :])[:, :, None], 0)
    return merged / total[:, None]
