"""Attention of lanes that compute one token each: norms of q and k, rotation, storing K and V, and paged attention.

Letters: M lanes (padded), L of them launched, H query heads, G key/value heads, D head_dim, P pages, S page_size.
A program has one lane, some key/value heads and a part of the context ("split"). The query heads of its key/value heads
are the rows of one tile; keys of several heads are the columns of another, and each row sees those of its own head.
The last program of a lane to arrive merges what all have left (arXiv 2205.14135; "flash decoding").
K and V may be codes with scales (`engine.quantization`); the newest token is then seen as it will be read later.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.attention_config import AttentionConfig
from engine.cuda.kernels.codes import KVCodes, encode, scale_of, scales_of_pairs
from engine.cuda.kernels.pdl import launch_dependents, wait
from engine.cuda.kernels.shared_memory import fitting_tiles
from engine.cuda.kernels.softmax import LOWEST, arrive_last, attend, load_rows, merge_parts, store_part

_MERGED_AT_ONCE = 8192
"""Numbers of parts in registers at a time when parts are merged."""


@triton.jit
def _slot_offsets(page, tokens, head, G: tl.constexpr, D: tl.constexpr, S: tl.constexpr):
    """Where the rows of some tokens and of a head begin within K or V."""
    return (page * S + tokens % S) * (G * D) + head * D


@triton.jit
def _rotated(plain, turned, weight, weight_turned, cos, sin, eps, D: tl.constexpr, HAS_NORM: tl.constexpr):
    """Rows [N, D] normed and rotated, float32; `turned` has their halves exchanged."""
    plain = plain.to(tl.float32)
    turned = turned.to(tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(plain * plain, 1) / D + eps)
        plain = plain * weight[None, :]
        turned = turned * weight_turned[None, :]
        return (plain * cos[None, :] + turned * sin[None, :]) * scale[:, None]
    else:
        return plain * cos[None, :] + turned * sin[None, :]


@triton.jit
def _decode_attention(
    qkv_ptr,
    positions_ptr,
    lens_ptr,
    tables_ptr,
    keys_ptr,
    values_ptr,
    cos_ptr,
    sin_ptr,
    q_norm_ptr,
    k_norm_ptr,
    parts_ptr,
    sums_ptr,
    counters_ptr,
    out_ptr,
    key_scales_ptr,
    value_scales_ptr,
    key_pairs_ptr,
    value_pairs_ptr,
    mean_ptr,
    spread_ptr,
    eps,
    scale,
    table_stride,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    MERGE_ROWS: tl.constexpr,
    MERGE_PARTS: tl.constexpr,
    CODES: tl.constexpr,
    MOST: tl.constexpr,
    WHOLE: tl.constexpr,
    PDL: tl.constexpr,
):
    split = tl.program_id(0)
    group = tl.program_id(1)
    lane = tl.program_id(2)
    SHARE: tl.constexpr = H // G
    TAKEN: tl.constexpr = HEADS * SHARE

    # What no kernel of this step writes may be read before the wait.
    context = tl.load(lens_ptr + lane, cache_modifier=".cg")
    position = tl.load(positions_ptr + lane, cache_modifier=".cg")
    own = tl.maximum(context - 1, 0)  # the newest token, whose K and V this kernel makes; the others are stored
    if WINDOW == 1:  # else the compiler sees that no other token is visible, and fails on the loop that runs but once
        own = tl.maximum(tl.load(lens_ptr + lane, volatile=True) - 1, 0)
    oldest = tl.maximum(context - WINDOW, 0) if WINDOW > 0 else 0
    seen_from = oldest
    if CODES and WINDOW > 0:
        oldest = oldest // 2 * 2  # scales are read in pairs
    chunk = tl.maximum(tl.cdiv(tl.cdiv(own - oldest, BLOCK), SPLITS), 1) * BLOCK
    active = tl.maximum(tl.cdiv(own - oldest, chunk), 1)
    begin = oldest + split * chunk
    end = tl.minimum(begin + chunk, own)
    table_ptr = tables_ptr + lane.to(tl.int64) * table_stride

    row = tl.arange(0, ROWS)
    row_there = row < TAKEN
    row_head = group * HEADS + tl.minimum(row // SHARE, HEADS - 1)
    dims = tl.arange(0, WIDTH)
    turned = tl.where(dims < D // 2, dims + D // 2, dims - D // 2)
    angle = tl.where(dims < D // 2, dims, dims - D // 2)
    known = (dims < D) & (context > 0)
    cos = tl.load(cos_ptr + position.to(tl.int64) * (D // 2) + angle, mask=known, other=0.0)
    sin = tl.load(sin_ptr + position.to(tl.int64) * (D // 2) + angle, mask=known, other=0.0)
    sin = tl.where(dims < D // 2, -sin, sin)
    q_weight, q_weight_turned, k_weight, k_weight_turned = cos, cos, cos, cos
    if HAS_NORM:
        q_weight = tl.load(q_norm_ptr + dims, mask=dims < D, other=0.0).to(tl.float32)
        q_weight_turned = tl.load(q_norm_ptr + turned, mask=dims < D, other=0.0).to(tl.float32)
        k_weight = tl.load(k_norm_ptr + dims, mask=dims < D, other=0.0).to(tl.float32)
        k_weight_turned = tl.load(k_norm_ptr + turned, mask=dims < D, other=0.0).to(tl.float32)
    own_page = tl.load(table_ptr + own // S, mask=context > 0, other=0).to(tl.int64)

    at = out_ptr + lane * (H * D) + (group * TAKEN + row[:, None]) * D + dims[None, :]
    row_kept = row_there[:, None] & (dims < D)[None, :]
    if split >= active or context <= 0:
        wait(PDL)
        launch_dependents(PDL)
        tl.store(at, tl.zeros([ROWS, WIDTH], out_ptr.dtype.element_ty), mask=row_kept & (context <= 0) & (split == 0))
    else:
        is_last = split == active - 1
        stored_kind = keys_ptr.dtype.element_ty
        kind = qkv_ptr.dtype.element_ty if CODES else stored_kind
        column = tl.arange(0, BLOCK * HEADS)
        column_token = column // HEADS
        column_head = group * HEADS + column % HEADS
        own_head = (row // SHARE)[:, None] == (column % HEADS)[None, :] if HEADS > 1 else True
        query = tl.zeros([ROWS, WIDTH], kind)
        peak = tl.full([ROWS], LOWEST, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, WIDTH], tl.float32)
        for first in tl.range(begin, tl.maximum(end, begin + 1), BLOCK, num_stages=STAGES):
            tokens = first + column_token
            visible = tokens < end
            if CODES and WINDOW > 0:
                visible = visible & (tokens >= seen_from)
            page = tl.load(table_ptr + tokens // S, mask=visible, other=0).to(tl.int64)
            offsets = _slot_offsets(page, tokens, column_head, G, D, S)
            tile_keys = load_rows(keys_ptr, offsets, visible, D, WIDTH)
            tile_values = load_rows(values_ptr, offsets, visible, D, WIDTH)
            key_scales, value_scales = None, None
            if CODES:
                if key_pairs_ptr is None:
                    places = (page * G + column_head) * S + tokens % S
                    key_scales = tl.load(key_scales_ptr + places, mask=visible, other=0.0).to(tl.float32)
                    value_scales = tl.load(value_scales_ptr + places, mask=visible, other=0.0).to(tl.float32)
                else:
                    pair = tl.arange(0, BLOCK * HEADS // 2)
                    token = first + pair // HEADS * 2
                    pair_page = tl.load(table_ptr + token // S, mask=token < end, other=0).to(tl.int64)
                    places = ((pair_page * G + group * HEADS + pair % HEADS) * S + token % S) // 2
                    key_pairs = tl.load(key_pairs_ptr + places, mask=token < end, other=0)
                    value_pairs = tl.load(value_pairs_ptr + places, mask=token < end, other=0)
                    key_scales = scales_of_pairs(key_pairs, visible, BLOCK, HEADS)
                    value_scales = scales_of_pairs(value_pairs, visible, BLOCK, HEADS)
                tile_keys = tile_keys.to(kind)
                tile_values = tile_values.to(kind)
            if first == begin:
                # Within the loop, because what its pipeline begins with then comes before the wait.
                if CODES:
                    channel = row_head[:, None] * D + dims[None, :]
                    mean = tl.load(mean_ptr + channel, mask=(dims < D)[None, :], other=0.0)
                    spread = tl.load(spread_ptr + channel, mask=(dims < D)[None, :], other=1.0)
                wait(PDL)
                launch_dependents(PDL)
                lane_ptr = qkv_ptr + lane * ((H + 2 * G) * D)
                query_ptr = lane_ptr + (group * TAKEN + row[:, None]) * D
                key_ptr = lane_ptr + (H + row_head[:, None]) * D
                new_kept = row_kept & is_last
                plain = tl.load(query_ptr + dims[None, :], mask=row_kept, other=0.0, cache_modifier=".cg")
                other = tl.load(query_ptr + turned[None, :], mask=row_kept, other=0.0, cache_modifier=".cg")
                plain_key = tl.load(key_ptr + dims[None, :], mask=new_kept, other=0.0, cache_modifier=".cg")
                other_key = tl.load(key_ptr + turned[None, :], mask=new_kept, other=0.0, cache_modifier=".cg")
                value = tl.load(key_ptr + G * D + dims[None, :], mask=new_kept, other=0.0, cache_modifier=".cg")
                if CODES:
                    query = _rotated(plain, other, q_weight, q_weight_turned, cos, sin, eps, D, HAS_NORM) * spread
                    key = _rotated(plain_key, other_key, k_weight, k_weight_turned, cos, sin, eps, D, HAS_NORM)
                    key, value = (key - mean) / spread, value.to(tl.float32)
                    key_scale, value_scale = scale_of(key, MOST), scale_of(value, MOST)
                    query = query.to(kind)
                    key = encode(key, key_scale, MOST, WHOLE).to(stored_kind)
                    value = encode(value, value_scale, MOST, WHOLE).to(stored_kind)
                else:
                    query = _rotated(plain, other, q_weight, q_weight_turned, cos, sin, eps, D, HAS_NORM).to(kind)
                    key = _rotated(plain_key, other_key, k_weight, k_weight_turned, cos, sin, eps, D, HAS_NORM).to(kind)
                    value = value.to(kind)
                slot = (own_page * S + own % S) * (G * D) + row_head[:, None].to(tl.int64) * D + dims[None, :]
                stored = new_kept & (row % SHARE == 0)[:, None]
                tl.store(keys_ptr + slot, key, mask=stored)
                tl.store(values_ptr + slot, value, mask=stored)
                score = tl.sum(query.to(tl.float32) * key.to(tl.float32), 1) * scale
                if CODES:
                    place = (own_page * G + row_head) * S + own % S
                    kept_scale = row_there & is_last & (row % SHARE == 0)
                    tl.store(key_scales_ptr + place, key_scale.to(key_scales_ptr.dtype.element_ty), mask=kept_scale)
                    tl.store(value_scales_ptr + place, value_scale.to(key_scales_ptr.dtype.element_ty), mask=kept_scale)
                    score = score * key_scale
                peak = tl.where(is_last, score, LOWEST)
                total = tl.where(is_last, total + 1.0, total)
                mixed = value.to(tl.float32)
                if CODES:
                    mixed = mixed * value_scale[:, None]
            seen = visible[None, :] & own_head
            peak, total, mixed = attend(
                query, tile_keys, tile_values, seen, scale, peak, total, mixed, key_scales, value_scales
            )

        if SPLITS == 1:  # noqa: SIM114  # known when compiled: nothing of what follows is
            tl.store(at, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=row_kept)
        elif active == 1:
            tl.store(at, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=row_kept)
        else:
            shared = lane * (G // HEADS) + group
            parts = parts_ptr + shared * (SPLITS * TAKEN * D)
            sums = sums_ptr + shared * (SPLITS * TAKEN)
            store_part(parts, sums, split * TAKEN + row, row_there, peak, total, mixed, D, WIDTH)
            if arrive_last(counters_ptr + shared, active):
                few = tl.arange(0, MERGE_ROWS)
                merged = merge_parts(parts, sums, active, few, few < TAKEN, TAKEN, D, WIDTH, SPLITS, MERGE_PARTS)
                merged_at = out_ptr + lane * (H * D) + (group * TAKEN + few[:, None]) * D + dims[None, :]
                kept = (few < TAKEN)[:, None] & (dims < D)[None, :]
                tl.store(merged_at, merged.to(out_ptr.dtype.element_ty), mask=kept)
                tl.store(counters_ptr + shared, 0)


def decode_attention(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    context_lens: torch.Tensor,
    tables: torch.Tensor,
    kv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    scale: float,
    window: int | None,
    partials: torch.Tensor,
    lse: torch.Tensor,
    counters: torch.Tensor,
    out: torch.Tensor,
    *,
    num_lanes: int,
    config: AttentionConfig,
    pdl: bool,
    codes: KVCodes | None = None,
) -> None:
    """Stores the K and V of each lane's newest token and attends with its query.

    Args:
        qkv: [M, (H + 2G) * D], what the fused product gives.
        positions: [M] int32, rotary positions.
        context_lens: [M] int32, tokens seen, the own one included; 0 for padding, whose output is zero.
        tables: [M, columns] int32, page numbers; columns past the context are not read.
        kv: [2, P, S, G, D], K and V of the layer, or codes; the newest tokens' are written.
        cos, sin: [positions, D / 2] float32.
        q_norm, k_norm: [D], or None; both or neither.
        eps: Added to the mean square of a head.
        scale: Factor on the scores.
        window: Positions a lane sees back, its own included, or None.
        partials: At least M * splits * H * D numbers, written.
        lse: At least M * splits * H float32, written.
        counters: At least M * G int32, zero, and zero again afterwards.
        out: [M, H * D], written.
        num_lanes: L.
        config: How it is cut; fewer and smaller tiles are taken where its own do not fit.
        pdl: Begin before the kernel in front has ended.
        codes: What belongs to codes, the newest tokens' scales written too; None where K and V are kept as they are.

    Raises:
        ValueError: The configuration does not suit the shape.
    """
    _, _, page_size, num_kv_heads, head_dim = kv.shape
    num_heads = out.shape[1] // head_dim
    if num_kv_heads % config.heads or config.heads & (config.heads - 1):
        raise ValueError(f"{config.heads} heads a program do not divide {num_kv_heads} as a power of two")
    taken = config.heads * num_heads // num_kv_heads
    merge_rows, width = triton.next_power_of_2(taken), max(16, triton.next_power_of_2(head_dim))
    columns = max(16, config.block * config.heads)
    kind = kv if codes is None else qkv  # what codes become before they are multiplied
    columns, num_stages = fitting_tiles(columns, width * kind.element_size(), config.num_stages, kv.device)
    _decode_attention[(config.splits, num_kv_heads // config.heads, num_lanes)](
        qkv,
        positions,
        context_lens,
        tables,
        kv[0],
        kv[1],
        cos,
        sin,
        cos if q_norm is None else q_norm,
        cos if k_norm is None else k_norm,
        partials,
        lse,
        counters,
        out,
        None if codes is None else codes.scales[0],
        None if codes is None else codes.scales[1],
        None if codes is None or codes.pairs is None else codes.pairs[0],
        None if codes is None or codes.pairs is None else codes.pairs[1],
        None if codes is None else codes.mean,
        None if codes is None else codes.spread,
        eps,
        scale * math.log2(math.e),
        tables.stride(0),
        H=num_heads,
        G=num_kv_heads,
        D=head_dim,
        S=page_size,
        WIDTH=width,
        WINDOW=window or 0,
        HAS_NORM=q_norm is not None,
        HEADS=config.heads,
        ROWS=max(16, merge_rows),
        BLOCK=columns // config.heads,
        SPLITS=config.splits,
        STAGES=2 * num_stages + 1,  # a tile needs its pages first, so each tile in flight takes two
        MERGE_ROWS=merge_rows,
        MERGE_PARTS=max(1, min(config.splits, _MERGED_AT_ONCE // (merge_rows * width))),
        CODES=codes is not None,
        MOST=0.0 if codes is None else codes.most,
        WHOLE=codes is not None and codes.whole,
        PDL=pdl,
        num_warps=config.num_warps,
        launch_pdl=pdl,
    )
