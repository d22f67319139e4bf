"""What changes logits before a token is chosen, in a kernel: what `engine.sampling.processors` does, in that order.

Penalties are taken from counts while a chunk passes through registers; biases and bans are few, and written over it.

Letters: M lanes, V vocabulary, W words of a bit mask, C chunks, P peaks: parts of the vocabulary whose maxima are kept.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels import row_fields as fields
from engine.cuda.kernels.pdl import launch_dependents, wait
from engine.cuda.kernels.tokens import PLUS_INFINITY, load_logits

__all__ = ["edit_chunks"]

LEAST: tl.constexpr = tl.constexpr(-3.4e38)
"""Takes the place of -inf where a difference is wanted."""
BANNED: tl.constexpr = tl.constexpr(-1e9)
ENTRIES_AT_ONCE: tl.constexpr = tl.constexpr(128)


@triton.jit(do_not_specialize_on_alignment=["rows_ptr", "num_outputs_ptr", "masks_ptr", "mask_of_ptr"])
def edit_chunks(
    logits_ptr,
    rows_ptr,
    num_outputs_ptr,
    words_ptr,
    numbers_ptr,
    masks_ptr,
    mask_of_ptr,
    peaks_ptr,
    maxima_ptr,
    sums_ptr,
    C: tl.constexpr,
    V: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    PEAK: tl.constexpr,
    HAS_MASKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Edits logits in place; for lanes that draw from a part also outlines them.

    The outline: maxima of PEAK tokens each [M, P], each chunk's greatest logit [M, C], and the sum of
    exp((logit - greatest) / temperature) over the chunk [M, C].
    """
    chunk, lane = tl.program_id(0), tl.program_id(1)
    wait(PDL)
    launch_dependents(PDL)
    row = tl.load(rows_ptr + lane)
    if row < 0:
        return
    words, numbers = words_ptr + row * fields.WORDS, numbers_ptr + row * fields.WORDS
    is_edited = tl.load(words + fields.IS_EDITED) != 0
    is_truncated = tl.load(words + fields.IS_TRUNCATED) != 0
    mask = -1
    if HAS_MASKS:
        mask = tl.load(mask_of_ptr + lane)
    if not (is_edited | is_truncated | (mask >= 0)):
        return
    lane_ptr = logits_ptr + lane.to(tl.int64) * V
    first = chunk * BLOCK
    ids = first + tl.arange(0, BLOCK)
    values = load_logits(lane_ptr, ids, V)
    if is_edited:
        values = _penalize(values, ids, words, numbers, V)
        values = _edit_entries(values, ids, lane_ptr, words, tl.load(num_outputs_ptr + lane), first, V, BLOCK)
    own = tl.load(words + fields.ALLOWED)
    if own != 0:
        values = _exclude(values, ids, own.to(tl.pointer_type(tl.int32)), V)
    if mask >= 0:
        values = _exclude(values, ids, masks_ptr + mask * W, V)
    if is_edited | (mask >= 0):
        tl.store(lane_ptr + ids, values, mask=ids < V)
    if is_truncated:
        temperature = tl.load(numbers + fields.TEMPERATURE).to(tl.float32)
        greatest = tl.max(values, 0)
        ratios = tl.exp((values - tl.maximum(greatest, LEAST)) / temperature)
        tl.store(maxima_ptr + lane * C + chunk, greatest)
        tl.store(sums_ptr + lane * C + chunk, tl.sum(ratios, 0))
        peaks = tl.max(tl.reshape(values, (BLOCK // PEAK, PEAK)), 1)
        tl.store(peaks_ptr + (lane * C + chunk) * (BLOCK // PEAK) + tl.arange(0, BLOCK // PEAK), peaks)


@triton.jit
def _penalize(values, ids, words, numbers, V: tl.constexpr):
    """Repetition, presence and frequency penalties of a chunk."""
    address = tl.load(words + fields.COUNTS)
    if address != 0:
        repetition = tl.load(numbers + fields.REPETITION).to(tl.float32)
        presence = tl.load(numbers + fields.PRESENCE).to(tl.float32)
        frequency = tl.load(numbers + fields.FREQUENCY).to(tl.float32)
        counts = tl.load(address.to(tl.pointer_type(tl.int32)) + ids, mask=ids < V, other=0)
        repeated = tl.where(values > 0, tl.div_rn(values, repetition), values * repetition)
        values = tl.where(counts > 0, tl.minimum(repeated, PLUS_INFINITY), values)
        in_output = counts >> 1
        penalized = values - in_output.to(tl.float32) * frequency
        values = tl.where(in_output > 0, penalized - presence, values)
    return values


@triton.jit
def _edit_entries(values, ids, lane_ptr, words, num_output, first, V: tl.constexpr, BLOCK: tl.constexpr):
    """Adds biases and forbids tokens, by way of memory, as they are few."""
    num_biases, num_bans = tl.load(words + fields.NUM_BIASES), tl.load(words + fields.NUM_BANS)
    num_early, num_bad_words = tl.load(words + fields.NUM_EARLY), tl.load(words + fields.NUM_BAD_WORDS)
    if num_biases + num_bans + num_early + num_bad_words > 0:
        entries = tl.load(words + fields.ENTRIES).to(tl.pointer_type(tl.int32))
        tl.store(lane_ptr + ids, values, mask=ids < V)
        tl.debug_barrier()
        _add_biases(lane_ptr, entries, num_biases, first, BLOCK)
        tl.debug_barrier()
        entries += 2 * num_biases
        _ban(lane_ptr, entries, num_bans, first, BLOCK)
        entries += num_bans
        if num_output < tl.load(words + fields.MIN_TOKENS):
            _ban(lane_ptr, entries, num_early, first, BLOCK)
        _ban_bad_words(lane_ptr, entries + num_early, num_bad_words, words, num_output, first, BLOCK)
        tl.debug_barrier()
        values = tl.load(lane_ptr + ids, mask=ids < V, other=float("-inf"))
    return values


@triton.jit
def _add_biases(lane_ptr, entries, num_biases, first, BLOCK: tl.constexpr):
    for start in range(0, num_biases, ENTRIES_AT_ONCE):
        place = start + tl.arange(0, ENTRIES_AT_ONCE)
        ids = tl.load(entries + place, mask=place < num_biases, other=-1)
        is_here = (ids >= first) & (ids < first + BLOCK)
        bias = tl.load(entries + num_biases + place, mask=is_here, other=0).to(tl.float32, bitcast=True)
        tl.store(lane_ptr + ids, tl.load(lane_ptr + ids, mask=is_here, other=0.0) + bias, mask=is_here)


@triton.jit
def _ban(lane_ptr, entries, num_bans, first, BLOCK: tl.constexpr):
    for start in range(0, num_bans, ENTRIES_AT_ONCE):
        place = start + tl.arange(0, ENTRIES_AT_ONCE)
        ids = tl.load(entries + place, mask=place < num_bans, other=-1)
        is_here = (ids >= first) & (ids < first + BLOCK)
        tl.store(lane_ptr + ids, tl.full((ENTRIES_AT_ONCE,), BANNED, tl.float32), mask=is_here)


@triton.jit
def _ban_bad_words(lane_ptr, entries, num_bad_words, words, num_output, first, BLOCK: tl.constexpr):
    """Forbids the last token of each word whose other tokens end the output."""
    end = tl.load(words + fields.HISTORY).to(tl.pointer_type(tl.int64))
    end += tl.load(words + fields.HISTORY_BASE) + num_output
    for _ in range(num_bad_words):
        length, last = tl.load(entries), tl.load(entries + 1)
        if (last >= first) & (last < first + BLOCK) & (length <= num_output):
            num_different = 0
            for start in range(0, length, ENTRIES_AT_ONCE):
                place = start + tl.arange(0, ENTRIES_AT_ONCE)
                tail = tl.load(end - length + place, mask=place < length, other=0)
                prefix = tl.load(entries + 2 + place, mask=place < length, other=0)
                num_different += tl.sum((tail != prefix).to(tl.int32), 0)
            if num_different == 0:
                tl.store(lane_ptr + last, BANNED)
        entries += 2 + length


@triton.jit
def _exclude(values, ids, mask_ptr, V: tl.constexpr):
    """Excludes tokens whose bit is 0; the others stay above those."""
    bits = tl.load(mask_ptr + ids // 32, mask=ids < V, other=0)
    return tl.where(((bits >> (ids % 32)) & 1) != 0, tl.maximum(values, BANNED), float("-inf"))
