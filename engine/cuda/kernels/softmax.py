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
    """Rows of D numbers at `offsets` [C], padded to WIDTH; zeros where a row is not visible."""
    dims = tl.arange(0, WIDTH)
    keep = visible[:, None]
    if D < WIDTH:
        keep = keep & (dims < D)[None, :]
    return tl.load(base_ptr + offsets[:, None] + dims[None, :], mask=keep, other=0.0)


@triton.jit
def product(left, right, total):
    """Adds a matrix product to `total`; float32 stays exact."""
    if INTERPRETED:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), total)
    else:
        return tl.dot(left, right, total, input_precision="ieee")


@triton.jit
def attend(query, keys, values, visible, scale, peak, total, mixed, MASKED: tl.constexpr):
    """Folds one tile into the rows' state.

    Args:
        query: [N, D].
        keys, values: [C, D].
        visible: [N, C] or [1, C], what each row sees; anything without MASKED.
        scale: Factor on the scores, times log2(e).
        peak, total, mixed: [N], [N] and [N, D] float32.
        MASKED: Whether `visible` counts.
    """
    scores = product(query, tl.trans(keys), tl.zeros([query.shape[0], keys.shape[0]], tl.float32)) * scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    highest = tl.maximum(peak, tl.max(scores, 1))
    weights = tl.exp2(scores - highest[:, None])
    shrink = tl.exp2(peak - highest)
    total = total * shrink + tl.sum(weights, 1)
    mixed = product(weights.to(values.dtype), values, mixed * shrink[:, None])
    return highest, total, mixed


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
    part = tl.arange(0, PARTS)
    at = sums_ptr + part[:, None] * stride + rows[None, :]
    sums = tl.load(at, mask=(part < num_parts)[:, None] & keep[None, :], other=LOWEST, cache_modifier=".cg")
    peak = tl.max(sums, 0)
    total = tl.sum(tl.exp2(sums - peak[None, :]), 0)
    merged = tl.zeros([rows.shape[0], WIDTH], tl.float32)
    for first in tl.static_range(0, PARTS, ONCE):
        part = first + tl.arange(0, ONCE)
        there = (part < num_parts)[:, None] & keep[None, :]
        sums = tl.load(
            sums_ptr + part[:, None] * stride + rows[None, :], mask=there, other=LOWEST, cache_modifier=".cg"
        )
        at = parts_ptr + (part[:, None, None] * stride + rows[None, :, None]) * D + dims[None, None, :]
        there = there[:, :, None] & (dims < D)[None, None, :]
        mixes = tl.load(at, mask=there, other=0.0, cache_modifier=".cg").to(tl.float32)
        merged += tl.sum(mixes * tl.exp2(sums - peak[None, :])[:, :, None], 0)
    return merged / total[:, None]
