"""Paged attention of any lanes: prompts, chunks of prompts, drafts, single tokens; causal, windowed or masked.

Letters: T tokens of the step, H query heads, G key/value heads, D head_dim, P pages, S page_size, W pieces of work.
A program has one piece of work and some key/value heads. The rows of its tile are the piece's tokens times the query
heads that share those key/value heads, so that each key is read once for all of them (arXiv 2205.14135). A long context
may be cut into several pieces; the last of them to be done merges them all. K and V may be codes with scales
(`engine.quantization`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.cuda.kernels.codes import KVCodes, scales_of_pairs
from engine.cuda.kernels.softmax import LOWEST, arrive_last, fold, load_rows, merge_parts, score, store_part

PIECE_FIELDS = 12
"""Numbers of a piece of work: see `Pieces`."""

MOST_PARTS = 32
"""Parts that one context may be cut into."""

_MERGED_AT_ONCE = 4096
"""Numbers of parts in registers at a time when parts are merged."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TileConfig:
    """How a program is cut.

    Attributes:
        rows: Of its tile of queries, a power of two, 16 or more.
        block: Tokens a tile of keys.
        heads: Key/value heads a program, a power of two that divides their number.
        num_warps: Of a program.
        num_stages: Tiles of keys in flight.
    """

    rows: int
    block: int
    heads: int = 1
    num_warps: int = 4
    num_stages: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """Pieces of work on the device, and what they share.

    Attributes:
        fields: [W, PIECE_FIELDS] int32: first row of the step; number of tokens; position of the first in its context;
            where the lane's pages begin; first token of the context that is read, and the one behind the last; number
            of this part, number of parts, and where they begin among all parts; number of the result among those that
            have parts; where the tokens' masks begin, and the numbers from one token's mask to the next one's.
        pages: Pages of all lanes, int32.
        masks: What tokens see, bytes; None for causal pieces.
        num_parts: Parts of all results.
        num_results: Results with several parts.
    """

    fields: torch.Tensor
    pages: torch.Tensor
    masks: torch.Tensor | None = None
    num_parts: int = 0
    num_results: int = 0


@triton.jit(do_not_specialize=["query_stride"])
def _paged_attention(
    query_ptr,
    keys_ptr,
    values_ptr,
    fields_ptr,
    pages_ptr,
    masks_ptr,
    parts_ptr,
    sums_ptr,
    counters_ptr,
    out_ptr,
    key_scales_ptr,
    value_scales_ptr,
    key_pairs_ptr,
    value_pairs_ptr,
    spread_ptr,
    scale,
    query_stride,
    H: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    MASKED: tl.constexpr,
    PARTS: tl.constexpr,
    MERGE_PARTS: tl.constexpr,
    FIELDS: tl.constexpr,
    CODES: tl.constexpr,
):
    piece_ptr = fields_ptr + tl.program_id(0) * FIELDS
    group = tl.program_id(1)
    SHARE: tl.constexpr = H // G
    TAKEN: tl.constexpr = HEADS * SHARE
    first_row = tl.load(piece_ptr)
    num_tokens = tl.load(piece_ptr + 1)
    position = tl.load(piece_ptr + 2)
    pages_ptr += tl.load(piece_ptr + 3)
    begin = tl.load(piece_ptr + 4)
    end = tl.load(piece_ptr + 5)
    if WINDOW > 0 and not MASKED:
        begin = tl.maximum(begin, (position - WINDOW + 1) // BLOCK * BLOCK)

    row = tl.arange(0, ROWS)
    token = row // TAKEN
    head = row % TAKEN
    there = token < num_tokens
    seen_last = position + token  # position of the newest token that a row sees
    query_offsets = (first_row + token).to(tl.int64) * query_stride + (group * TAKEN + head) * D
    query = load_rows(query_ptr, query_offsets, there, D, WIDTH)
    kind = query_ptr.dtype.element_ty
    if CODES:
        channel = ((group * TAKEN + head) // SHARE)[:, None] * D + tl.arange(0, WIDTH)[None, :]
        spread = tl.load(spread_ptr + channel, mask=(tl.arange(0, WIDTH) < D)[None, :], other=1.0)
        query = (query.to(tl.float32) * spread).to(kind)
    column = tl.arange(0, BLOCK * HEADS)
    column_token = column // HEADS
    column_offset = (group * HEADS + column % HEADS) * D
    if MASKED:
        own_masks = masks_ptr + tl.load(piece_ptr + 10) + token.to(tl.int64) * tl.load(piece_ptr + 11)

    peak = tl.full([ROWS], LOWEST, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in tl.range(begin, end, BLOCK, num_stages=STAGES):
        tokens = first + column_token
        known = tl.minimum(tokens, end - 1)  # what lies behind is not visible, but must be there
        page = tl.load(pages_ptr + known // S).to(tl.int64)
        offsets = (page * S + known % S) * (G * D) + column_offset
        tile_keys = load_rows(keys_ptr, offsets, None, D, WIDTH)
        tile_values = load_rows(values_ptr, offsets, None, D, WIDTH)
        value_scales = None
        if CODES:
            if key_pairs_ptr is None:
                places = (page * G + group * HEADS + column % HEADS) * S + known % S
                key_scales = tl.load(key_scales_ptr + places).to(tl.float32)
                value_scales = tl.load(value_scales_ptr + places).to(tl.float32)
            else:
                pair = tl.arange(0, BLOCK * HEADS // 2)
                both = tl.minimum(first + pair // HEADS * 2, (end - 1) // 2 * 2)
                pair_page = tl.load(pages_ptr + both // S).to(tl.int64)
                places = ((pair_page * G + group * HEADS + pair % HEADS) * S + both % S) // 2
                key_scales = scales_of_pairs(tl.load(key_pairs_ptr + places), tokens < end, BLOCK, HEADS)
                value_scales = scales_of_pairs(tl.load(value_pairs_ptr + places), tokens < end, BLOCK, HEADS)
            tile_values = tile_values.to(kind)
            scores = score(query, tile_keys.to(kind)) * key_scales[None, :]
        else:
            scores = score(query, tile_keys)
        if MASKED:
            inside = there[:, None] & (tokens < end)[None, :]
            visible = tl.load(own_masks[:, None] + tokens[None, :], mask=inside, other=0) != 0
            scores = tl.where(visible, scores, float("-inf"))
        elif WINDOW > 0:
            distance = seen_last[:, None] - tokens[None, :]
            scores = tl.where((distance >= 0) & (distance < WINDOW), scores, float("-inf"))
        elif first + BLOCK - 1 > position or first + BLOCK > end:
            visible = (tokens[None, :] <= seen_last[:, None]) & (tokens < end)[None, :]
            scores = tl.where(visible, scores, float("-inf"))
        if HEADS > 1:
            own_head = (head // SHARE)[:, None] == (column % HEADS)[None, :]
            scores = tl.where(own_head, scores, float("-inf"))
        peak, total, mixed = fold(scores, tile_values, scale, peak, total, mixed, value_scales)

    dims = tl.arange(0, WIDTH)
    kept = there[:, None] & (dims < D)[None, :]
    out_at = out_ptr + ((first_row + token).to(tl.int64) * H + group * TAKEN + head)[:, None] * D + dims[None, :]
    out_kind = out_ptr.dtype.element_ty
    num_parts = tl.load(piece_ptr + 7)
    if num_parts == 1:
        divisor = tl.where(total > 0.0, total, 1.0)  # of a row that sees nothing: its output is zero
        tl.store(out_at, (mixed / divisor[:, None]).to(out_kind), mask=kept)
    else:
        GROUPS: tl.constexpr = G // HEADS
        first_part = (tl.load(piece_ptr + 8) * GROUPS + group).to(tl.int64) * ROWS
        own_part = tl.load(piece_ptr + 6) * (GROUPS * ROWS)
        parts = parts_ptr + first_part * D
        sums = sums_ptr + first_part
        store_part(parts, sums, own_part + row, there, peak, total, mixed, D, WIDTH)
        counter_ptr = counters_ptr + tl.load(piece_ptr + 9) * GROUPS + group
        if arrive_last(counter_ptr, num_parts):
            merged = merge_parts(parts, sums, num_parts, row, there, GROUPS * ROWS, D, WIDTH, PARTS, MERGE_PARTS)
            tl.store(out_at, merged.to(out_kind), mask=kept)
            tl.store(counter_ptr, 0)


def paged_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    pieces: Pieces,
    counters: torch.Tensor,
    scale: float,
    window: int | None,
    out: torch.Tensor,
    *,
    config: TileConfig,
    codes: KVCodes | None = None,
) -> None:
    """Attends to pages that hold K and V of all tokens.

    Args:
        query: [T, H, D], rotated; each token's heads lie together.
        kv: [2, P, S, G, D], K and V of the layer, or codes.
        pieces: What is computed; no piece has more tokens than fit into `config.rows`.
        counters: At least num_results * G int32, zero, and zero again afterwards.
        scale: Factor on the scores, positive.
        window: Positions a token sees back, itself included, or None; not for masked pieces.
        out: [T, H, D], written where a piece says so.
        config: How it is cut.
        codes: What belongs to codes; None where K and V are kept as they are.
    """
    _, _, page_size, num_kv_heads, head_dim = kv.shape
    num_heads, groups = query.shape[1], num_kv_heads // config.heads
    width = max(16, triton.next_power_of_2(head_dim))
    num_rows = pieces.num_parts * groups * config.rows
    parts = torch.empty(num_rows * (head_dim + 1), device=query.device)
    _paged_attention[(len(pieces.fields), groups)](
        query,
        kv[0],
        kv[1],
        pieces.fields,
        pieces.pages,
        pieces.pages if pieces.masks is None else pieces.masks,
        parts,
        parts[num_rows * head_dim :],
        counters,
        out,
        None if codes is None else codes.scales[0],
        None if codes is None else codes.scales[1],
        None if codes is None or codes.pairs is None else codes.pairs[0],
        None if codes is None or codes.pairs is None else codes.pairs[1],
        None if codes is None else codes.spread,
        scale * math.log2(math.e),
        query.stride(0),
        H=num_heads,
        G=num_kv_heads,
        D=head_dim,
        S=page_size,
        WIDTH=width,
        WINDOW=0 if window is None or pieces.masks is not None else window,
        HEADS=config.heads,
        ROWS=config.rows,
        BLOCK=config.block,
        STAGES=2 * config.num_stages + 1,  # a tile needs its pages first, so each tile in flight takes two
        MASKED=pieces.masks is not None,
        PARTS=MOST_PARTS,
        MERGE_PARTS=max(1, min(MOST_PARTS, _MERGED_AT_ONCE // (config.rows * width))),
        FIELDS=PIECE_FIELDS,
        CODES=codes is not None,
        num_warps=config.num_warps,
    )
