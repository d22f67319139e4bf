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

from engine.cuda.kernels.matmul_configs import PRELOADED_TILES, MatmulConfig, parts_of
from engine.cuda.kernels.matmul_kernels import normed_kernel, residual_kernel


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
    residual_kernel[(config.tiles(size), config.split_k)](
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
    normed_kernel[(config.tiles(len(weight)), config.split_k)](
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
