"""The two kernels of `engine.cuda.kernels.matmul`: one reads the norm of the residual stream, the other adds to it.

Letters: M lanes of the buffers, LANES width of the multiplication, N outputs, K columns of a weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels.pdl import launch_dependents, wait
from engine.cuda.kernels.tiles import (
    arrive,
    gather,
    load_squares,
    multiply,
    prefetch_rows,
    preload,
    weight_pointers,
)


@triton.jit
def _store(values, out_ptr, output, num_lanes, N: tl.constexpr, LANES: tl.constexpr):
    """Stores values [outputs, LANES] to out [M, N], where there are such outputs and lanes."""
    lane = tl.arange(0, LANES)[None, :]
    keep = (output < N)[:, None] & (lane < num_lanes)
    tl.store(out_ptr + lane * N + output[:, None], values.to(out_ptr.dtype.element_ty), mask=keep)


@triton.jit
def _gated(total, BLOCK_N: tl.constexpr, LANES: tl.constexpr):
    """silu(gate) * up of sums whose rows are gate and up by turns."""
    gate, up = tl.split(tl.permute(tl.reshape(total, [BLOCK_N // 2, 2, LANES]), (0, 2, 1)))
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _finish(
    total,
    squares,
    scale,
    bias,
    out_ptr,
    output,
    num_lanes,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    GATED: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LANES: tl.constexpr,
):
    """Norms the sums and stores what is to become of them."""
    total *= tl.rsqrt(tl.sum(squares, 1) / K + eps)[None, :]
    if SCALED:
        total *= scale[:, None]
    if BIASED:
        total += bias[:, None]
    if GATED:
        total = _gated(total, BLOCK_N, LANES)
    _store(total, out_ptr, output, num_lanes, N, LANES)


@triton.jit(do_not_specialize=["num_lanes", "steps"])
def normed_kernel(
    normed_ptr,
    squares_ptr,
    weight_ptr,
    scale_ptr,
    bias_ptr,
    out_ptr,
    workspace_ptr,
    counters_ptr,
    num_lanes,
    steps,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    GATED: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    K_SLICES: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    PRELOADED: tl.constexpr,
    PREFETCHED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
    UNROLLED: tl.constexpr,
    PDL: tl.constexpr,
):
    """N outputs of a normed product; GATED: of twice as many rows, the upper half of them gated by the lower."""
    tile, split = tl.program_id(0), tl.program_id(1)
    OUTPUTS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N
    turn = tl.arange(0, BLOCK_N)
    if GATED:
        row = tl.minimum(tile * OUTPUTS + turn // 2, N - 1) + (turn % 2) * N
    else:
        row = tl.minimum(tile * OUTPUTS + turn, N - 1)
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    pointers = weight_pointers(weight_ptr, row, split, K, BLOCK_K, K_SLICES, STEPS)
    tiles = preload(pointers, split, K, BLOCK_K, K_SLICES, STEPS, EVEN, PRELOADED)
    if PREFETCHED > 0:
        count, start = tl.minimum(OUTPUTS, N - tile * OUTPUTS), split * (STEPS * K_SLICES * BLOCK_K)
        prefetch_rows(weight_ptr, tile * OUTPUTS, count, start, K, PREFETCHED)
        if GATED:
            prefetch_rows(weight_ptr, N + tile * OUTPUTS, count, start, K, PREFETCHED)
    scale = tl.load(scale_ptr + row) if SCALED else 1.0
    bias = tl.load(bias_ptr + row).to(tl.float32) if BIASED else 0.0
    wait(PDL)
    launch_dependents(PDL)
    squares = load_squares(squares_ptr, PARTS, PADDED_PARTS, ROWS, LANES)
    total = multiply(
        normed_ptr,
        pointers,
        tiles,
        split,
        STEPS if UNROLLED else steps,
        K,
        BLOCK_N,
        BLOCK_K,
        K_SLICES,
        STEPS,
        EVEN,
        PRELOADED,
        ROWS,
        LANES,
        STAGES,
    )
    if SPLIT_K == 1:
        _finish(
            total, squares, scale, bias, out_ptr, output, num_lanes, eps, N, K, GATED, SCALED, BIASED, BLOCK_N, LANES
        )
    else:
        if arrive(total, workspace_ptr, counters_ptr, tile, split, BLOCK_N, LANES, SPLIT_K):
            total = gather(workspace_ptr, counters_ptr, tile, BLOCK_N, LANES, SPLIT_K)
            _finish(
                total,
                squares,
                scale,
                bias,
                out_ptr,
                output,
                num_lanes,
                eps,
                N,
                K,
                GATED,
                SCALED,
                BIASED,
                BLOCK_N,
                LANES,
            )


@triton.jit
def _add(
    total, before, norm, hidden_ptr, normed_ptr, squares_ptr, tile, output, num_lanes, N: tl.constexpr, LANES, PARTS
):
    """Adds sums to what the residual stream held, and stores it with what the norm behind it reads."""
    lane = tl.arange(0, LANES)
    hidden = tl.where((output < N)[:, None], before + total, 0.0)
    _store(hidden, hidden_ptr, output, num_lanes, N, LANES)
    _store(hidden * norm[:, None], normed_ptr, output, num_lanes, N, LANES)
    tl.store(squares_ptr + lane * PARTS + tile, tl.sum(hidden * hidden, 0), mask=lane < num_lanes)


@triton.jit
def _load_hidden(hidden_ptr, output, num_lanes, N: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)[None, :]
    keep = (output < N)[:, None] & (lane < num_lanes)
    return tl.load(hidden_ptr + lane * N + output[:, None], mask=keep, other=0.0, cache_modifier=".cg")


@triton.jit(do_not_specialize=["num_lanes", "steps"])
def residual_kernel(
    x_ptr,
    weight_ptr,
    scale_ptr,
    norm_ptr,
    hidden_ptr,
    normed_ptr,
    squares_ptr,
    workspace_ptr,
    counters_ptr,
    num_lanes,
    steps,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    K_SLICES: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STEPS: tl.constexpr,
    EVEN: tl.constexpr,
    PRELOADED: tl.constexpr,
    PREFETCHED: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    STAGES: tl.constexpr,
    UNROLLED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Adds a product to the residual stream; the norm behind it is half done here."""
    tile, split = tl.program_id(0), tl.program_id(1)
    output = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.minimum(output, N - 1)
    pointers = weight_pointers(weight_ptr, row, split, K, BLOCK_K, K_SLICES, STEPS)
    tiles = preload(pointers, split, K, BLOCK_K, K_SLICES, STEPS, EVEN, PRELOADED)
    if PREFETCHED > 0:
        count, start = tl.minimum(BLOCK_N, N - tile * BLOCK_N), split * (STEPS * K_SLICES * BLOCK_K)
        prefetch_rows(weight_ptr, tile * BLOCK_N, count, start, K, PREFETCHED)
    norm = tl.load(norm_ptr + row).to(tl.float32)
    if SCALED:
        scale = tl.load(scale_ptr + row)
    wait(PDL)
    launch_dependents(PDL)
    if SPLIT_K == 1:  # asked for here, the stream arrives while the product is computed
        before = _load_hidden(hidden_ptr, output, num_lanes, N, LANES)
    total = multiply(
        x_ptr,
        pointers,
        tiles,
        split,
        STEPS if UNROLLED else steps,
        K,
        BLOCK_N,
        BLOCK_K,
        K_SLICES,
        STEPS,
        EVEN,
        PRELOADED,
        ROWS,
        LANES,
        STAGES,
    )
    if SPLIT_K == 1:
        if SCALED:
            total *= scale[:, None]
        _add(total, before, norm, hidden_ptr, normed_ptr, squares_ptr, tile, output, num_lanes, N, LANES, PARTS)
    else:
        if arrive(total, workspace_ptr, counters_ptr, tile, split, BLOCK_N, LANES, SPLIT_K):
            before = _load_hidden(hidden_ptr, output, num_lanes, N, LANES)
            total = gather(workspace_ptr, counters_ptr, tile, BLOCK_N, LANES, SPLIT_K)
            if SCALED:
                total *= scale[:, None]
            _add(total, before, norm, hidden_ptr, normed_ptr, squares_ptr, tile, output, num_lanes, N, LANES, PARTS)
