"""The first kernel of a captured step: what each lane computes, and its row of the embedding.

Letters: M lanes, E hidden_size, V vocabulary, R rows of device state, P parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.pdl import launch_dependents, wait


@triton.jit
def _embed_kernel(
    token_ids_ptr,
    rows_ptr,
    last_tokens_ptr,
    embedding_ptr,
    norm_ptr,
    hidden_ptr,
    normed_ptr,
    squares_ptr,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    PADDED_PARTS: tl.constexpr,
    NORMED: tl.constexpr,
    PDL: tl.constexpr,
):
    lane = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    keep = column < E
    if NORMED:
        norm = tl.load(norm_ptr + column, mask=keep, other=0.0).to(tl.float32)
    wait(PDL)
    launch_dependents(PDL)  # not sooner: kernels behind read early what the previous step wrote
    token = tl.load(token_ids_ptr + lane, cache_modifier=".cg").to(tl.int64)
    row = tl.load(rows_ptr + lane, cache_modifier=".cg").to(tl.int64)
    newest = tl.load(last_tokens_ptr + tl.maximum(row, 0), cache_modifier=".cg").to(tl.int64)
    padding = (token < 0) & (row < 0)
    token = tl.maximum(tl.where(token < 0, newest, token), 0)
    values = tl.load(embedding_ptr + token * E + column, mask=keep, other=0.0).to(tl.float32)
    values = tl.where(padding, 0.0, values)
    tl.store(hidden_ptr + lane * E + column, values, mask=keep)
    if NORMED:
        tl.store(normed_ptr + lane * E + column, (values * norm).to(normed_ptr.dtype.element_ty), mask=keep)
        part = tl.arange(0, PADDED_PARTS)
        squares = tl.where(part == 0, tl.sum(values * values, 0), 0.0)
        tl.store(squares_ptr + lane * PARTS + part, squares, mask=part < PARTS)


def embed(
    token_ids: torch.Tensor,
    embedding: torch.Tensor,
    next_norm: torch.Tensor | None,
    hidden: torch.Tensor,
    normed: torch.Tensor | None,
    squares: torch.Tensor | None,
    *,
    rows: torch.Tensor,
    last_tokens: torch.Tensor,
    num_lanes: int,
    pdl: bool,
) -> None:
    """Begins the residual stream, and leaves what the first norm reads (see `engine.cuda.kernels.matmul`).

    Args:
        token_ids: [M] integers; -1 takes the newest token of the lane's row.
        embedding: [V, E].
        next_norm: [E], weight of the first norm; None at width 1, whose products norm for themselves.
        hidden: [M, E] float32, its first `num_lanes` rows written; zeros for padding, a lane without token and row.
        normed: [M, E], written: the stream times that weight; None without `next_norm`.
        squares: [M, P] float32, written; the first part holds the whole sum; None without `next_norm`.
        rows: [M] integers, rows of device state; negative for padding.
        last_tokens: [R] integers, newest tokens.
        num_lanes: Lanes to write, at most M.
        pdl: Whether it may start before the kernel in front has ended.

    Raises:
        ValueError: A norm without room for what it reads, or shapes that do not match.
    """
    size = embedding.shape[1]
    if next_norm is not None and (normed is None or squares is None):
        raise ValueError("with a norm, normed and squares are wanted too")
    if hidden.shape[1] != size or len(hidden) < num_lanes or (normed is not None and normed.shape != hidden.shape):
        raise ValueError(f"hidden and normed must be [M, {size}] with at least {num_lanes} rows")
    parts = 1 if squares is None else squares.shape[1]
    block = triton.next_power_of_2(size)
    _embed_kernel[(num_lanes,)](
        token_ids,
        rows,
        last_tokens,
        embedding,
        embedding if next_norm is None else next_norm,
        hidden,
        hidden if normed is None else normed,
        hidden if squares is None else squares,
        E=size,
        BLOCK=block,
        PARTS=parts,
        PADDED_PARTS=triton.next_power_of_2(parts),
        NORMED=next_norm is not None,
        PDL=pdl,
        num_warps=max(1, min(8, block // 512)),
        launch_pdl=pdl,
    )
