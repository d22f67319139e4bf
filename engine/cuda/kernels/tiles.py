"""What the products of a few lanes have in common: a program's tile of a weight times all lanes.

Letters: N rows of a weight, K its columns, LANES width of the multiplication, ROWS rows of the buffers (at most LANES;
the lanes above compute once more what the first ones do, and are not stored).
Weights are the left operand and lanes the right one: the tensor cores' long side then lies along the weight, and a
narrow batch wastes little. Rows past N are the last row once more, columns past K are zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run on CPU tensors, where products of bfloat16 must be taken in float32."""

_PREFETCH_ROWS = tl.constexpr(
    "{ .reg .pred p; .reg .u32 t; .reg .u64 a; mov.u32 t, %tid.x; setp.lt.u32 p, t, $2; mad.wide.u32 a, t, $3, $1;"
    " @p cp.async.bulk.prefetch.L2.global [a], $4; mov.u32 $0, 0; }"
)


@triton.jit
def weight_pointers(
    weight_ptr, row, split, K: tl.constexpr, BLOCK_K: tl.constexpr, K_SLICES: tl.constexpr, STEPS: tl.constexpr
):
    """Where the first tile of a program lies: [N, K] or, with slices, [S, N, K]; `row` [N] are rows of the weight."""
    column = split * (STEPS * K_SLICES * BLOCK_K) + tl.arange(0, BLOCK_K)
    if K_SLICES == 1:
        return weight_ptr + row.to(tl.int64)[:, None] * K + column[None, :]
    else:
        sliced = tl.arange(0, K_SLICES)[:, None, None] * BLOCK_K + column[None, None, :]
        return weight_ptr + row.to(tl.int64)[None, :, None] * K + sliced


@triton.jit
def load_step(pointers, step, split, K: tl.constexpr, BLOCK_K: tl.constexpr, K_SLICES: tl.constexpr, STEPS, EVEN):
    """One tile of weights or lanes, `step` steps behind the one that `pointers` point at."""
    if EVEN:
        return tl.load(pointers + step * (K_SLICES * BLOCK_K))
    else:
        column = (split * STEPS + step) * (K_SLICES * BLOCK_K) + tl.arange(0, BLOCK_K)
        if K_SLICES == 1:
            keep = (column < K)[None, :]
        else:
            keep = tl.arange(0, K_SLICES)[:, None, None] * BLOCK_K + column[None, None, :] < K
        return tl.load(pointers + step * (K_SLICES * BLOCK_K), mask=keep, other=0.0)


@triton.jit
def preload(
    pointers,
    split,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    K_SLICES: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    PRELOADED: tl.constexpr,
):
    """Loads the first tiles of weights, to be done before the wait; zeros stand for those that are not."""
    first, second, third = 0, 0, 0
    if PRELOADED >= 1:
        first = load_step(pointers, 0, split, K, BLOCK_K, K_SLICES, STEPS, EVEN)
    if PRELOADED >= 2:
        second = load_step(pointers, 1, split, K, BLOCK_K, K_SLICES, STEPS, EVEN)
    if PRELOADED >= 3:
        third = load_step(pointers, 2, split, K, BLOCK_K, K_SLICES, STEPS, EVEN)
    return first, second, third


@triton.jit
def prefetch_rows(weight_ptr, first_row, num_rows, start, K: tl.constexpr, COLUMNS: tl.constexpr):
    """Has COLUMNS columns of some rows, from `start` on, brought into the L2 cache: each row by a thread of its own."""
    if not INTERPRETED:
        kind: tl.constexpr = weight_ptr.dtype.element_ty
        width: tl.constexpr = kind.primitive_bitwidth // 8
        address = (weight_ptr + first_row.to(tl.int64) * K + start).to(tl.int64, bitcast=True)
        num_bytes = tl.maximum(tl.minimum(COLUMNS, K - start), 0) * width
        tl.inline_asm_elementwise(
            _PREFETCH_ROWS,
            "=r,l,r,r,r",
            [address, num_rows, K * width, num_bytes],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def multiply_add(weights, lanes, total, K_SLICES: tl.constexpr):
    """Adds the product of a tile of weights and a tile of lanes; weights of eight bits become what the lanes are."""
    turned = tl.trans(lanes) if K_SLICES == 1 else tl.permute(lanes, (0, 2, 1))
    if INTERPRETED:
        return tl.dot(weights.to(tl.float32), turned.to(tl.float32), total)
    else:
        return tl.dot(weights.to(lanes.dtype), turned, total, input_precision="ieee")


@triton.jit
def multiply(
    x_ptr,
    pointers,
    tiles,
    split,
    steps,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    K_SLICES: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    PRELOADED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Multiplies a program's part of the weight with all lanes x [ROWS, K]: [N, LANES] float32.

    `steps` is STEPS, as a constant where the loop is to be unrolled.
    """
    lane = tl.arange(0, LANES) % ROWS
    lanes_at = weight_pointers(x_ptr, lane, split, K, BLOCK_K, K_SLICES, STEPS)
    if K_SLICES == 1:
        total = tl.zeros([BLOCK_N, LANES], tl.float32)
    else:
        total = tl.zeros([K_SLICES, BLOCK_N, LANES], tl.float32)
    for step in tl.static_range(PRELOADED):
        lanes = load_step(lanes_at, step, split, K, BLOCK_K, K_SLICES, STEPS, EVEN)
        total = multiply_add(tiles[step], lanes, total, K_SLICES)
    if PRELOADED < STEPS:
        for step in tl.range(PRELOADED, steps, num_stages=STAGES):
            weights = load_step(pointers, step, split, K, BLOCK_K, K_SLICES, STEPS, EVEN)
            lanes = load_step(lanes_at, step, split, K, BLOCK_K, K_SLICES, STEPS, EVEN)
            total = multiply_add(weights, lanes, total, K_SLICES)
    return total if K_SLICES == 1 else tl.sum(total, 0)


@triton.jit
def load_squares(squares_ptr, PARTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr):
    """The partial sums of squares of all lanes, [LANES, PADDED]; those past PARTS are zero."""
    lane = tl.arange(0, LANES) % ROWS
    part = tl.arange(0, PADDED)
    at = squares_ptr + lane[:, None] * PARTS + part[None, :]
    return tl.load(at, mask=part[None, :] < PARTS, other=0.0, cache_modifier=".cg")


@triton.jit
def arrive(total, workspace_ptr, counters_ptr, tile, split, BLOCK_N: tl.constexpr, LANES: tl.constexpr, SPLIT_K):
    """Leaves a program's part of a sum for the last one that shares its tile; true in that last one."""
    at = tl.arange(0, BLOCK_N)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    tl.store(workspace_ptr + (tile * SPLIT_K + split) * (BLOCK_N * LANES) + at, total)
    tl.debug_barrier()  # all threads have stored before one of them says so
    arrived = tl.atomic_add(counters_ptr + tile, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return arrived == SPLIT_K - 1


@triton.jit
def gather(workspace_ptr, counters_ptr, tile, BLOCK_N: tl.constexpr, LANES: tl.constexpr, SPLIT_K: tl.constexpr):
    """Adds what all programs of a tile left, always in the same order, and readies the counter for the next time."""
    at = tl.arange(0, BLOCK_N)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    total = tl.zeros([BLOCK_N, LANES], tl.float32)
    for split in tl.static_range(SPLIT_K):
        part = workspace_ptr + (tile * SPLIT_K + split) * (BLOCK_N * LANES) + at
        total += tl.load(part, cache_modifier=".cg")
    tl.store(counters_ptr + tile, 0)
    return total
