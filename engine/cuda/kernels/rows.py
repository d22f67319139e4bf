"""What happens to rows between the products of a wide step: norms, rotation, storing K and V, the gate.

Letters: T rows, E hidden_size, H query heads, G key/value heads, D head_dim, I intermediate_size, V vocabulary,
N slots of the pool. Sums and norms are float32; what the next product reads has its own dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.codes import KVCodes, encode, scale_of


@triton.jit
def _scale_and_store(values, norm_ptr, normed_ptr, row, columns, keep, eps, E: tl.constexpr):
    weights = tl.load(norm_ptr + columns, mask=keep, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / E + eps)
    tl.store(normed_ptr + row * E + columns, (values * scale * weights).to(normed_ptr.dtype.element_ty), mask=keep)


@triton.jit
def _embed_norm(ids_ptr, embedding_ptr, norm_ptr, hidden_ptr, normed_ptr, eps, E: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    keep = columns < E
    token = tl.load(ids_ptr + row).to(tl.int64)
    values = tl.load(embedding_ptr + token * E + columns, mask=keep, other=0.0).to(tl.float32)
    tl.store(hidden_ptr + row * E + columns, values, mask=keep)
    _scale_and_store(values, norm_ptr, normed_ptr, row, columns, keep, eps, E)


@triton.jit
def _embed_lanes_norm(
    given_ptr,
    rows_ptr,
    last_tokens_ptr,
    embedding_ptr,
    norm_ptr,
    hidden_ptr,
    normed_ptr,
    eps,
    E: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    keep = columns < E
    token = tl.load(given_ptr + lane).to(tl.int64)
    if token < 0:
        token = tl.load(last_tokens_ptr + tl.maximum(tl.load(rows_ptr + lane), 0)).to(tl.int64)
    values = tl.load(embedding_ptr + token * E + columns, mask=keep, other=0.0).to(tl.float32)
    tl.store(hidden_ptr + lane * E + columns, values, mask=keep)
    _scale_and_store(values, norm_ptr, normed_ptr, lane, columns, keep, eps, E)


@triton.jit
def _add_norm(delta_ptr, norm_ptr, hidden_ptr, normed_ptr, eps, E: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    keep = columns < E
    values = tl.load(hidden_ptr + row * E + columns, mask=keep, other=0.0)
    values += tl.load(delta_ptr + row * E + columns, mask=keep, other=0.0).to(tl.float32)
    tl.store(hidden_ptr + row * E + columns, values, mask=keep)
    _scale_and_store(values, norm_ptr, normed_ptr, row, columns, keep, eps, E)


@triton.jit
def _rotate_store(
    qkv_ptr,
    positions_ptr,
    slots_ptr,
    cos_ptr,
    sin_ptr,
    norms_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    key_scales_ptr,
    value_scales_ptr,
    mean_ptr,
    spread_ptr,
    targets_ptr,
    dense_key_ptr,
    dense_value_ptr,
    eps,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    VALUES: tl.constexpr,
    HAS_NORM: tl.constexpr,
    CODES: tl.constexpr,
    MOST: tl.constexpr,
    WHOLE: tl.constexpr,
    HOLES: tl.constexpr,
    TARGETS: tl.constexpr,
    DENSE_KEYS: tl.constexpr,
    DENSE_VALUES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    heads = tl.arange(0, HEADS)[:, None]
    half = tl.arange(0, HALF)[None, :]
    keep = (heads < H + G) & (half < D // 2)
    base = qkv_ptr + row * ((H + 2 * G) * D) + heads * D + half
    first = tl.load(base, mask=keep, other=0.0).to(tl.float32)
    second = tl.load(base + D // 2, mask=keep, other=0.0).to(tl.float32)
    if HAS_NORM:
        square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
        scale = tl.rsqrt(square / D + eps)[:, None]
        weights = norms_ptr + heads * D + half
        first = first * scale * tl.load(weights, mask=keep, other=0.0)
        second = second * scale * tl.load(weights + D // 2, mask=keep, other=0.0)
    position = tl.load(positions_ptr + row).to(tl.int64)
    cos = tl.load(cos_ptr + position * (D // 2) + half, mask=half < D // 2, other=0.0)
    sin = tl.load(sin_ptr + position * (D // 2) + half, mask=half < D // 2, other=0.0)
    rotated_first = first * cos - second * sin
    rotated_second = second * cos + first * sin
    is_query = keep & (heads < H)
    target = row
    dense_row = row
    if TARGETS:
        target = tl.load(targets_ptr + row).to(tl.int64)
        dense_row = target - tl.num_programs(
            0
        )  # rows of dense K and V lie beside those of queries behind the step's own
    query = query_ptr + target * (H * D) + heads * D + half
    kind = query_ptr.dtype.element_ty
    tl.store(query, rotated_first.to(kind), mask=is_query)
    tl.store(query + D // 2, rotated_second.to(kind), mask=is_query)
    if DENSE_KEYS:
        dense = dense_key_ptr + dense_row * (G * D) + (heads - H) * D + half
        is_dense = keep & (heads >= H) & (dense_row >= 0)
        tl.store(dense, rotated_first.to(kind), mask=is_dense)
        tl.store(dense + D // 2, rotated_second.to(kind), mask=is_dense)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    is_key = keep & (heads >= H)
    if HOLES:
        is_key = is_key & (slot >= 0)
    stored = key_ptr.dtype.element_ty
    key = key_ptr + slot * (G * D) + (heads - H) * D + half
    if CODES:
        channel = (heads - H) * D + half
        mean = tl.load(mean_ptr + channel, mask=is_key, other=0.0)
        second_mean = tl.load(mean_ptr + channel + D // 2, mask=is_key, other=0.0)
        spread = tl.load(spread_ptr + channel, mask=is_key, other=1.0)
        second_spread = tl.load(spread_ptr + channel + D // 2, mask=is_key, other=1.0)
        rotated_first = (rotated_first - mean) / spread
        rotated_second = (rotated_second - second_mean) / second_spread
        scale = scale_of(tl.maximum(tl.abs(rotated_first), tl.abs(rotated_second)), MOST)
        rotated_first = encode(rotated_first, scale, MOST, WHOLE)
        rotated_second = encode(rotated_second, scale, MOST, WHOLE)
        _store_scales(key_scales_ptr, scale, slot, tl.arange(0, HEADS) - H, G, S)
    tl.store(key, rotated_first.to(stored), mask=is_key)
    tl.store(key + D // 2, rotated_second.to(stored), mask=is_key)
    value_row = qkv_ptr + row * ((H + 2 * G) * D) + (H + G) * D
    if CODES:
        value_head = tl.arange(0, HEADS)
        is_value = (value_head < G)[:, None] & (half < D // 2)
        if HOLES:
            is_value = is_value & (slot >= 0)
        channel = value_head[:, None] * D + half
        first = tl.load(value_row + channel, mask=is_value, other=0.0).to(tl.float32)
        second = tl.load(value_row + channel + D // 2, mask=is_value, other=0.0).to(tl.float32)
        scale = scale_of(tl.maximum(tl.abs(first), tl.abs(second)), MOST)
        _store_scales(value_scales_ptr, scale, slot, value_head, G, S)
        value = value_ptr + slot * (G * D) + channel
        tl.store(value, encode(first, scale, MOST, WHOLE).to(stored), mask=is_value)
        tl.store(value + D // 2, encode(second, scale, MOST, WHOLE).to(stored), mask=is_value)
    else:
        columns = tl.arange(0, VALUES)
        values = tl.load(value_row + columns, mask=columns < G * D, other=0.0)
        is_stored = columns < G * D
        if HOLES:
            is_stored = is_stored & (slot >= 0)
        tl.store(value_ptr + slot * (G * D) + columns, values.to(stored), mask=is_stored)
        if DENSE_VALUES:
            dense_values = dense_value_ptr + dense_row * (G * D) + columns
            tl.store(dense_values, values.to(kind), mask=(columns < G * D) & (dense_row >= 0))


@triton.jit
def _store_scales(scales_ptr, scale, slot, heads, G: tl.constexpr, S: tl.constexpr):
    """Stores scales of some heads, those from 0 to G, of a slot's K or V."""
    at = scales_ptr + (slot // S * G + heads) * S + slot % S
    tl.store(at, scale.to(scales_ptr.dtype.element_ty), mask=(heads >= 0) & (heads < G) & (slot >= 0))


@triton.jit
def _gate(gate_up_ptr, out_ptr, I: tl.constexpr, BLOCK: tl.constexpr):  # noqa: E741  # the letter of the docstring
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = columns < I
    gate = tl.load(gate_up_ptr + row * (2 * I) + columns, mask=keep, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * (2 * I) + I + columns, mask=keep, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * I + columns, (gate / (1.0 + tl.exp(-gate)) * up).to(out_ptr.dtype.element_ty), mask=keep)


def embed_norm(
    token_ids: torch.Tensor, embedding: torch.Tensor, norm: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Looks rows up and normalises them.

    Args:
        token_ids: [T] integers.
        embedding: [V, E].
        norm: [E].
        eps: Added to the mean square.

    Returns:
        The residual stream [T, E] float32, and its rows normalised, in the embedding's dtype.
    """
    num_rows, size = len(token_ids), embedding.shape[1]
    hidden = torch.empty((num_rows, size), dtype=torch.float32, device=embedding.device)
    normed = torch.empty((num_rows, size), dtype=embedding.dtype, device=embedding.device)
    block = triton.next_power_of_2(size)
    _embed_norm[(num_rows,)](
        token_ids, embedding, norm, hidden, normed, eps, E=size, BLOCK=block, num_warps=_warps(block)
    )
    return hidden, normed


def embed_lanes_norm(
    given: torch.Tensor,
    rows: torch.Tensor,
    last_tokens: torch.Tensor,
    embedding: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    hidden: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    """Looks up what each lane computes: a given token, or the newest of its row of device state.

    Args:
        given: [M] int32, token ids; -1 takes the newest.
        rows: [M] int32, rows of device state; negative for lanes that are padding.
        last_tokens: [R] int64, newest tokens.
        embedding: [V, E].
        norm: [E].
        eps: Added to the mean square.
        hidden: [M, E] float32, written.
        normed: [M, E], written.
    """
    size = embedding.shape[1]
    block = triton.next_power_of_2(size)
    _embed_lanes_norm[(len(given),)](
        given, rows, last_tokens, embedding, norm, hidden, normed, eps, E=size, BLOCK=block, num_warps=_warps(block)
    )


def add_norm(
    hidden: torch.Tensor,
    delta: torch.Tensor,
    norm: torch.Tensor,
    eps: float,
    normed: torch.Tensor,
) -> torch.Tensor:
    """Adds to the residual stream and normalises it for the product that comes next.

    Args:
        hidden: [T, E] float32, changed.
        delta: [T, E], what is added.
        norm: [E].
        eps: Added to the mean square.
        normed: [T, E], written.

    Returns:
        `normed`.
    """
    num_rows, size = hidden.shape
    block = triton.next_power_of_2(size)
    _add_norm[(num_rows,)](delta, norm, hidden, normed, eps, E=size, BLOCK=block, num_warps=_warps(block))
    return normed


def rotate_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norms: torch.Tensor | None,
    eps: float,
    pages: torch.Tensor,
    query: torch.Tensor,
    codes: KVCodes | None = None,
    *,
    holes: bool = False,
    targets: torch.Tensor | None = None,
    dense_key: torch.Tensor | None = None,
    dense_value: torch.Tensor | None = None,
) -> torch.Tensor:
    """Norms the heads of q and k if the model does, rotates them, and stores K and V.

    K and V may be wanted a second time as rows one behind the other, by kernels that read no pages: M rows, which are
    the step's own, or those that `targets` tells.

    Args:
        qkv: [T, (H + 2G) * D].
        positions: [T] integers, rotary positions.
        slots: [T] integers, where K and V go.
        cos, sin: [positions, D / 2] float32.
        norms: [H + G, D] float32, or None.
        eps: Added to the mean square of a head.
        pages: [2, N, G, D], K and V of the layer, or codes.
        query: [T, H, D], written; [T + M, H, D] with `targets`.
        codes: What belongs to codes, their scales written too; None where K and V are kept as they are.
        holes: Some slots may be -1: K and V of these tokens are stored nowhere.
        targets: [T] integers, the row of `query` that each token's goes to: one of the first T, or one behind them,
            row T + m, where its K and V go to row m of the dense ones; None leaves rows where they are, and M is T.
        dense_key, dense_value: [M, G, D] in the dtype of `query`, written too; None where they are not wanted. Not
            beside codes.

    Returns:
        `query`.
    """
    assert codes is None or (dense_key is None and dense_value is None)
    num_rows, (num_heads, head_dim) = len(qkv), query.shape[1:]
    num_kv_heads = pages.shape[2]
    heads, half = triton.next_power_of_2(num_heads + num_kv_heads), triton.next_power_of_2(head_dim // 2)
    _rotate_store[(num_rows,)](
        qkv,
        positions,
        slots,
        cos,
        sin,
        cos if norms is None else norms,
        query,
        pages[0],
        pages[1],
        None if codes is None else codes.scales[0],
        None if codes is None else codes.scales[1],
        None if codes is None else codes.mean,
        None if codes is None else codes.spread,
        targets,
        dense_key,
        dense_value,
        eps,
        H=num_heads,
        G=num_kv_heads,
        D=head_dim,
        S=1 if codes is None else codes.scales.shape[3],
        HEADS=heads,
        HALF=half,
        VALUES=triton.next_power_of_2(num_kv_heads * head_dim),
        HAS_NORM=norms is not None,
        CODES=codes is not None,
        MOST=0.0 if codes is None else codes.most,
        WHOLE=codes is not None and codes.whole,
        HOLES=holes,
        TARGETS=targets is not None,
        DENSE_KEYS=dense_key is not None,
        DENSE_VALUES=dense_value is not None,
        num_warps=_warps(heads * half),
    )
    return query


def gate(gate_up: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Computes silu(gate) * up.

    Args:
        gate_up: [T, 2I], gate first.
        out: [T, I], written.

    Returns:
        `out`.
    """
    num_rows, size = out.shape
    block = min(2048, triton.next_power_of_2(size))
    _gate[(num_rows, triton.cdiv(size, block))](gate_up, out, I=size, BLOCK=block, num_warps=_warps(block))
    return out


def _warps(elements: int) -> int:
    """Warps that give each thread eight to sixteen elements of a row."""
    return max(1, min(8, elements // 512))
