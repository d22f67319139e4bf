"""A draw in kernels whose inputs are device memory alone, so that it can be captured and replayed without the host.

One kernel cuts every lane's vocabulary into chunks and finds each chunk's best token; one picks the best of those and
remembers it. A token's score has float32 noise unless several tokens come so near to each other that float64 has to
decide: the tokens are those of `engine.sampling.torch_choice`.

What lanes have are views of a block, read one number at a time: one form of a kernel serves them wherever they begin.

Letters: M lanes, V vocabulary, C chunks, R rows of device state.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels import row_fields as fields
from engine.cuda.kernels.noise import exact_score, position_key, score, slack
from engine.cuda.kernels.pdl import launch_dependents, wait

__all__ = ["pick", "score_chunks"]

COUNT_IN_OUTPUT: tl.constexpr = tl.constexpr(2)
NO_TOKEN: tl.constexpr = tl.constexpr(2**31 - 1)
"""Greater than any id."""
PLUS_INFINITY: tl.constexpr = tl.constexpr(1e9)
"""What +inf counts as."""


@triton.jit
def load_logits(logits_ptr, ids, length):
    """Logits of token ids in a row: NaN and what lies behind its length is -inf, +inf a large number."""
    values = tl.load(logits_ptr + ids, mask=ids < length, other=float("-inf"))
    values = tl.where(values == float("inf"), PLUS_INFINITY, values)
    return tl.where(values != values, float("-inf"), values)


@triton.jit
def _load_kept(logits_ptr, lane, ids, is_truncated, cut_values_ptr, cut_ids_ptr, V: tl.constexpr, FULL: tl.constexpr):
    """A lane's logits; those that its part of the vocabulary leaves out are -inf."""
    values = load_logits(logits_ptr + lane.to(tl.int64) * V, ids, V)
    if FULL:
        cut_value = tl.load(cut_values_ptr + lane, mask=is_truncated, other=float("-inf"))
        cut_id = tl.load(cut_ids_ptr + lane, mask=is_truncated, other=NO_TOKEN)
        is_kept = (values > cut_value) | ((values == cut_value) & (ids <= cut_id))
        values = tl.where(is_kept, values, float("-inf"))
    return values


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "positions_ptr"])
def score_chunks(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    words_ptr,
    numbers_ptr,
    cut_values_ptr,
    cut_ids_ptr,
    best_ptr,
    ids_ptr,
    rivals_ptr,
    C: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
    PDL: tl.constexpr,
):
    """Writes each chunk's best score [M, C] float32, its first token, and how many of its tokens come near to it."""
    chunk, lane = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    launch_dependents(PDL)
    row = tl.load(rows_ptr + lane)
    if row < 0:
        return
    words, numbers = words_ptr + row * fields.WORDS, numbers_ptr + row * fields.WORDS
    temperature = tl.load(numbers + fields.TEMPERATURE).to(tl.float32)
    is_truncated = tl.load(words + fields.IS_TRUNCATED) != 0
    ids = chunk * BLOCK + tl.arange(0, BLOCK)
    values = _load_kept(logits_ptr, lane, ids, is_truncated, cut_values_ptr, cut_ids_ptr, V, FULL)
    if temperature > 0:
        low, high = position_key(tl.load(words + fields.STREAM_KEY), tl.load(positions_ptr + lane))
        values = score(values, ids, low, high, temperature)
    best = tl.max(values, 0)
    place = lane * C + chunk
    tl.store(best_ptr + place, best)
    tl.store(ids_ptr + place, tl.min(tl.where(values == best, ids, NO_TOKEN), 0))
    if temperature > 0:
        tl.store(rivals_ptr + place, tl.sum((values >= best - slack(best)).to(tl.int32), 0))


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "positions_ptr", "num_outputs_ptr", "tokens_ptr"])
def pick(
    logits_ptr,
    rows_ptr,
    positions_ptr,
    num_outputs_ptr,
    words_ptr,
    numbers_ptr,
    cut_values_ptr,
    cut_ids_ptr,
    best_ptr,
    ids_ptr,
    rivals_ptr,
    last_tokens_ptr,
    tokens_ptr,
    C: tl.constexpr,
    CHUNKS: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    FULL: tl.constexpr,
    PDL: tl.constexpr,
):
    """Chooses the best token of each lane's chunks, and remembers it."""
    lane = tl.program_id(0)
    wait(PDL)
    launch_dependents(PDL)
    row = tl.load(rows_ptr + lane)
    if row < 0:
        return
    words, numbers = words_ptr + row * fields.WORDS, numbers_ptr + row * fields.WORDS
    temperature = tl.load(numbers + fields.TEMPERATURE).to(tl.float32)
    chunk = tl.arange(0, CHUNKS)
    exists = chunk < C
    bests = tl.load(best_ptr + lane * C + chunk, mask=exists, other=float("-inf"))
    ids = tl.load(ids_ptr + lane * C + chunk, mask=exists, other=NO_TOKEN)
    best = tl.max(bests, 0)
    token = tl.min(tl.where(bests == best, ids, NO_TOKEN), 0)
    if (temperature > 0) & (best > float("-inf")):
        is_near = exists & (bests >= best - slack(best))
        rivals = tl.load(rivals_ptr + lane * C + chunk, mask=is_near, other=0)
        if tl.sum(rivals, 0) > 1:
            is_truncated = tl.load(words + fields.IS_TRUNCATED) != 0
            low, high = position_key(tl.load(words + fields.STREAM_KEY), tl.load(positions_ptr + lane))
            greatest = tl.full((), float("-inf"), tl.float64)
            at = tl.min(tl.where(is_near, chunk, CHUNKS), 0)
            while at < CHUNKS:
                of_chunk = at * BLOCK + tl.arange(0, BLOCK)
                values = _load_kept(logits_ptr, lane, of_chunk, is_truncated, cut_values_ptr, cut_ids_ptr, V, FULL)
                scores = exact_score(values, of_chunk, low, high, temperature)
                here = tl.max(scores, 0)
                first = tl.min(tl.where(scores == here, of_chunk, NO_TOKEN), 0)
                token = tl.where(here > greatest, first, token)
                greatest = tl.maximum(here, greatest)
                at = tl.min(tl.where(is_near & (chunk > at), chunk, CHUNKS), 0)
    tl.store(last_tokens_ptr + row, token.to(last_tokens_ptr.dtype.element_ty))
    tl.store(tokens_ptr + lane, token.to(tokens_ptr.dtype.element_ty))
    if FULL:
        _write_down(words, token, tl.load(num_outputs_ptr + lane))


@triton.jit
def _write_down(words, token, num_output):
    """Counts a token and appends it to its sequence's history, where the row has those."""
    counts = tl.load(words + fields.COUNTS)
    if counts != 0:
        count_ptr = counts.to(tl.pointer_type(tl.int32)) + token
        tl.store(count_ptr, tl.load(count_ptr) + COUNT_IN_OUTPUT)
    history = tl.load(words + fields.HISTORY)
    place = tl.load(words + fields.HISTORY_BASE) + num_output
    if (history != 0) & (place < tl.load(words + fields.HISTORY_WIDTH)):
        tl.store(history.to(tl.pointer_type(tl.int64)) + place, token.to(tl.int64))
