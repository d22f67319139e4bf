"""Products of two to 64 lanes with a weight, each with what comes before and after it.

Letters: M lanes of the buffers (8, 16, 32 or 64), N rows of a weight, K its columns, E hidden_size,
I intermediate_size, V vocabulary, P parts.
A norm is never a kernel of its own. Whoever writes the residual stream also leaves `normed` [M, E], the stream times
the norm's weight but not yet scaled, and `squares` [M, P] float32, partial sums of its squares; whoever reads them
scales its sums by the inverse of the root mean square, which commutes with the product.
A lane's results depend on no other lane and not on what lies in the lanes above `num_lanes`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.matmul_configs import PRELOADED_TILES, MatmulConfig, parts_of
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
def _normed_kernel(
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
def _residual_kernel(
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


def normed_matmul(
    normed: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    *,
    num_lanes: int,
    config: MatmulConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    counters: torch.Tensor | None = None,
) -> None:
    """Multiplies the norm of the residual stream with a weight.

    Args:
        normed: [M, K] bfloat16 (float32 for float32 weights), the stream times the norm's weight.
        squares: [M, P] float32, partial sums of the stream's squares.
        eps: Added to the mean square.
        weight: [N, K] bfloat16, float32, int8 or float8_e4m3fn.
        bias: [N], or None.
        out: [M, N], its first `num_lanes` rows written.
        num_lanes: Lanes that count, at most M.
        config: How the product is cut.
        pdl: Whether it may start before the kernel in front has ended.
        scale: [N] float32, what each row of a weight of eight bits is multiplied by.
        workspace: float32, for programs that share K (`config.workspace_floats`).
        counters: [tiles] int32, zeros, for the same; zeros again afterwards.

    Raises:
        ValueError: Shapes do not match, or there is no room for programs that share K.
    """
    _launch_normed(normed, squares, eps, weight, bias, out, False, num_lanes, config, pdl, scale, workspace, counters)


def gated_matmul(
    normed: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    num_lanes: int,
    config: MatmulConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
    counters: torch.Tensor | None = None,
) -> None:
    """Multiplies the norm of the residual stream with gate and up, and computes silu(gate) * up.

    Args:
        normed, squares, eps, num_lanes, config, pdl, scale, workspace, counters: As for `normed_matmul`.
        weight: [2I, K], gate first.
        out: [M, I], its first `num_lanes` rows written.

    Raises:
        ValueError: Shapes do not match, or there is no room for programs that share K.
    """
    _launch_normed(normed, squares, eps, weight, None, out, True, num_lanes, config, pdl, scale, workspace, counters)


def head_matmul(
    normed: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    logits: torch.Tensor,
    *,
    num_lanes: int,
    config: MatmulConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Computes logits [M, V] float32 of the norm of the residual stream; all else is as for `normed_matmul`.

    Raises:
        ValueError: Shapes do not match, or the configuration splits K.
    """
    _launch_normed(normed, squares, eps, weight, None, logits, False, num_lanes, config, pdl, scale, None, None)


def residual_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    hidden: torch.Tensor,
    next_norm: torch.Tensor,
    normed: torch.Tensor,
    squares: torch.Tensor,
    workspace: torch.Tensor,
    counters: torch.Tensor,
    *,
    num_lanes: int,
    config: MatmulConfig,
    pdl: bool,
    scale: torch.Tensor | None = None,
) -> None:
    """Adds a product to the residual stream, and leaves what the norm behind it reads.

    Args:
        x: [M, K] bfloat16 (float32 for float32 weights).
        weight: [E, K] bfloat16, float32, int8 or float8_e4m3fn.
        hidden: [M, E] float32, changed.
        next_norm: [E], weight of the norm that comes next.
        normed: [M, E], written: the stream times that weight.
        squares: [M, parts_of(config, E)] float32, written.
        workspace: float32, for programs that share K (`config.workspace_floats`).
        counters: [tiles] int32, zeros, for the same; zeros again afterwards.
        num_lanes: Lanes that count, at most M.
        config: How the product is cut.
        pdl: Whether it may start before the kernel in front has ended.
        scale: [E] float32, what each row of a weight of eight bits is multiplied by.

    Raises:
        ValueError: Shapes do not match, or there is no room for programs that share K.
    """
    size = len(weight)
    parts = parts_of(config, size)
    _check(x, weight, len(x), num_lanes, config, workspace, counters)
    if hidden.shape != (len(x), size) or normed.shape != hidden.shape or squares.shape != (len(x), parts):
        raise ValueError(f"hidden and normed must be [{len(x)}, {size}] and squares [{len(x)}, {parts}]")
    _residual_kernel[(config.tiles(size), config.split_k)](
        x,
        weight,
        weight if scale is None else scale,
        next_norm,
        hidden,
        normed,
        squares,
        workspace,
        counters,
        num_lanes,
        config.steps(x.shape[1]),
        N=size,
        PARTS=parts,
        SCALED=scale is not None,
        **_cut(config, x, weight, pdl),
    )


def _launch_normed(
    normed: torch.Tensor,
    squares: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    gated: bool,
    num_lanes: int,
    config: MatmulConfig,
    pdl: bool,
    scale: torch.Tensor | None,
    workspace: torch.Tensor | None,
    counters: torch.Tensor | None,
) -> None:
    num_rows, size = len(normed), len(weight) // (2 if gated else 1)
    _check(normed, weight, num_rows, num_lanes, config, workspace, counters)
    if out.shape != (num_rows, size) or len(squares) != num_rows:
        raise ValueError(f"out must be [{num_rows}, {size}] and squares have {num_rows} rows")
    parts = squares.shape[1]
    _normed_kernel[(config.tiles(len(weight)), config.split_k)](
        normed,
        squares,
        weight,
        squares if scale is None else scale,
        squares if bias is None else bias,
        out,
        squares if workspace is None else workspace,
        squares if counters is None else counters,
        num_lanes,
        config.steps(normed.shape[1]),
        eps,
        N=size,
        PARTS=parts,
        PADDED_PARTS=triton.next_power_of_2(parts),
        GATED=gated,
        SCALED=scale is not None,
        BIASED=bias is not None,
        **_cut(config, normed, weight, pdl),
    )


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    num_rows: int,
    num_lanes: int,
    config: MatmulConfig,
    workspace: torch.Tensor | None,
    counters: torch.Tensor | None,
) -> None:
    if x.shape[1] != weight.shape[1]:
        raise ValueError(f"lanes of {x.shape[1]} columns do not go with a weight of {weight.shape[1]}")
    if num_rows not in (8, 16, 32, 64) or not 0 < num_lanes <= num_rows:
        raise ValueError(f"{num_lanes} lanes in buffers of {num_rows} rows; rows must be 8, 16, 32 or 64")
    if config.split_k > 1:
        floats, tiles = config.workspace_floats(len(weight), num_rows), config.tiles(len(weight))
        if workspace is None or counters is None or workspace.numel() < floats or counters.numel() < tiles:
            raise ValueError(f"to share K wants {floats} float32 of workspace and {tiles} counters")


def _cut(config: MatmulConfig, x: torch.Tensor, weight: torch.Tensor, pdl: bool) -> dict[str, Any]:
    """What of a launch follows from the configuration and the operands."""
    num_rows, size = x.shape
    steps = config.steps(size)
    even = steps * config.block_k * config.k_slices * config.split_k == size
    return {
        "K": size,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "K_SLICES": config.k_slices,
        "SPLIT_K": config.split_k,
        "STEPS": steps,
        "EVEN": even,
        "PRELOADED": min(steps, PRELOADED_TILES) if config.prefetch == "registers" else 0,
        "PREFETCHED": config.prefetched_columns(size, weight.element_size()),
        "ROWS": num_rows,
        "LANES": config.lanes(num_rows, weight.dtype),
        "STAGES": config.num_stages,
        "UNROLLED": config.unrolled,
        "PDL": pdl,
        "num_warps": config.num_warps,
        "launch_pdl": pdl,
    }
