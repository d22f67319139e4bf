"""Where the part of the vocabulary that a lane draws from ends: `engine.sampling.truncation`, without sorting.

Tokens stand in order of falling logits, the lower id first among equals; `top_k`, `top_p` and `min_p` each keep a
beginning of that order, so what all keep ends at one token, the cut. A rule's cut is found by bisection: how many
tokens, or how much mass, come before a value.

Few tokens are looked at: the k-th greatest of the peaks (maxima of some tokens each) has at least k tokens that are not
less, so where a lane keeps few, all come from few peaks. They are gathered first. Where that does not suffice, the
bisection reads the whole row.

Logits are compared as integers of the same order, which bisection can halve.

Letters: M lanes, V vocabulary, C chunks, P peaks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine.cuda.kernels import row_fields as fields
from engine.cuda.kernels.pdl import launch_dependents, wait
from engine.cuda.kernels.tokens import NO_TOKEN, load_logits

__all__ = ["find_cuts"]

LEAST_KEY: tl.constexpr = tl.constexpr(-(2**31))
MARGIN: tl.constexpr = tl.constexpr(1e-5)
"""More than the rounding of a sum of probabilities."""


@triton.jit
def find_cuts(
    logits_ptr,
    rows_ptr,
    words_ptr,
    numbers_ptr,
    peaks_ptr,
    maxima_ptr,
    sums_ptr,
    blocks_ptr,
    candidates_ptr,
    candidate_ids_ptr,
    cut_values_ptr,
    cut_ids_ptr,
    C: tl.constexpr,
    CHUNKS: tl.constexpr,
    V: tl.constexpr,
    P: tl.constexpr,
    PEAKS: tl.constexpr,
    PEAK: tl.constexpr,
    FEW: tl.constexpr,
    CAPACITY: tl.constexpr,
    GATHERED: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Writes the last token that each truncated lane keeps: its logit [M] float32, and its id [M].

    The id is that of the last kept among equal logits, or greater where all of them are.
    """
    lane = tl.program_id(0)
    wait(PDL)
    launch_dependents(PDL)
    row = tl.load(rows_ptr + lane)
    if row < 0:
        return
    words, numbers = words_ptr + row * fields.WORDS, numbers_ptr + row * fields.WORDS
    if tl.load(words + fields.IS_TRUNCATED) == 0:
        return
    lane_ptr = logits_ptr + lane.to(tl.int64) * V
    top_k = tl.load(words + fields.TOP_K)
    top_p, min_p = tl.load(numbers + fields.TOP_P), tl.load(numbers + fields.MIN_P)
    temperature = tl.load(numbers + fields.TEMPERATURE).to(tl.float32)
    chunk = tl.arange(0, CHUNKS)
    maxima = tl.load(maxima_ptr + lane * C + chunk, mask=chunk < C, other=float("-inf"))
    sums = tl.load(sums_ptr + lane * C + chunk, mask=chunk < C, other=0.0)
    greatest = tl.max(maxima, 0)
    cut_key, cut_id = tl.full((), LEAST_KEY, tl.int64), tl.full((), NO_TOKEN, tl.int32)
    if greatest > float("-inf"):
        total = tl.sum(sums.to(tl.float64) * tl.exp((maxima - greatest) / temperature).to(tl.float64), 0)
        listed_ptr, listed_ids_ptr = candidates_ptr + lane * CAPACITY, candidate_ids_ptr + lane * CAPACITY
        bound, is_sure = _bound(peaks_ptr + lane * P, top_k, top_p, min_p, temperature, greatest, V, P, PEAKS, FEW)
        num_listed = _gather(
            lane_ptr, peaks_ptr + lane * P, blocks_ptr + lane * P, listed_ptr, listed_ids_ptr,
            bound, V, P, PEAKS, PEAK, CAPACITY, GATHERED,
        )  # fmt: skip
        is_listed = num_listed <= CAPACITY
        if is_listed & (not is_sure):
            mass = _weight_above(listed_ptr, num_listed, cut_key, greatest, temperature, True, CAPACITY)
            is_listed = (top_k == V) & (mass > top_p * total * (1 + MARGIN))
        low = _key(bound).to(tl.int64)
        if is_listed:
            cut_key, cut_id = _cut(
                listed_ptr, listed_ids_ptr, num_listed, low, top_k, top_p, min_p, temperature, greatest, total,
                V, True, CAPACITY,
            )  # fmt: skip
        else:
            cut_key, cut_id = _cut(
                lane_ptr, listed_ids_ptr, V, LEAST_KEY, top_k, top_p, min_p, temperature, greatest, total,
                V, False, TILE,
            )  # fmt: skip
    tl.store(cut_values_ptr + lane, _value(cut_key.to(tl.int32)))
    tl.store(cut_ids_ptr + lane, cut_id)


@triton.jit
def _key(values):
    """An integer of the same order as a float32; both zeros are one."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The float32 of a key; -inf for the least."""
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return tl.where(key == LEAST_KEY, float("-inf"), bits.to(tl.float32, bitcast=True))


@triton.jit
def _bound(
    peaks_ptr,
    top_k,
    top_p,
    min_p,
    temperature,
    greatest,
    V: tl.constexpr,
    P: tl.constexpr,
    PEAKS: tl.constexpr,
    FEW: tl.constexpr,
):
    """A value that few logits reach, and whether all that the lane keeps do for certain."""
    is_top_k_sure = top_k <= P
    number = tl.where(is_top_k_sure, top_k, FEW)
    key = _least_with(peaks_ptr, P, LEAST_KEY, number, greatest, temperature, False, PEAKS)
    bound = tl.where(is_top_k_sure | (top_p < 1.0), _value(key.to(tl.int32)), float("-inf"))
    by_min_p = greatest + temperature * tl.log(tl.maximum(min_p, 1e-300)).to(tl.float32)
    by_min_p -= 1e-3 + 1e-5 * tl.abs(by_min_p)
    # What top_p leaves of what top_k keeps depends on the mass of all of that: none of it may be missing then.
    is_min_p_bound = (min_p > 0.0) & ((top_p >= 1.0) | (top_k == V))
    by_min_p = tl.where(is_min_p_bound, by_min_p, float("-inf"))
    return tl.maximum(bound, by_min_p), is_top_k_sure | (bound <= by_min_p)


@triton.jit
def _gather(
    lane_ptr,
    peaks_ptr,
    blocks_ptr,
    listed_ptr,
    listed_ids_ptr,
    bound,
    V: tl.constexpr,
    P: tl.constexpr,
    PEAKS: tl.constexpr,
    PEAK: tl.constexpr,
    CAPACITY: tl.constexpr,
    GATHERED: tl.constexpr,
):
    """Lists the tokens that reach a bound, and returns how many do, or more than there is room for."""
    peak = tl.arange(0, PEAKS)
    is_wanted = (peak < P) & (tl.load(peaks_ptr + peak, mask=peak < P, other=float("-inf")) >= bound)
    tl.store(blocks_ptr + tl.cumsum(is_wanted.to(tl.int32), 0) - 1, peak, mask=is_wanted)
    num_blocks = tl.sum(is_wanted.to(tl.int32), 0)
    tl.debug_barrier()
    num_listed = tl.full((), 0, tl.int32)
    start = tl.full((), 0, tl.int32)
    while (start < num_blocks) & (num_listed <= CAPACITY):
        place = start + tl.arange(0, GATHERED * PEAK) // PEAK
        block = tl.load(blocks_ptr + place, mask=place < num_blocks, other=V)
        ids = block * PEAK + tl.arange(0, GATHERED * PEAK) % PEAK
        values = load_logits(lane_ptr, ids, V)
        is_listed = (values >= bound) & (ids < V)
        at = num_listed + tl.cumsum(is_listed.to(tl.int32), 0) - 1
        tl.store(listed_ptr + at, values, mask=is_listed & (at < CAPACITY))
        tl.store(listed_ids_ptr + at, ids, mask=is_listed & (at < CAPACITY))
        num_listed += tl.sum(is_listed.to(tl.int32), 0)
        start += GATHERED
    tl.debug_barrier()
    return num_listed


@triton.jit
def _cut(
    values_ptr,
    ids_ptr,
    num_values,
    low,
    top_k,
    top_p,
    min_p,
    temperature,
    greatest,
    total,
    V: tl.constexpr,
    HAS_IDS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Key and id of the last token that all rules keep."""
    cut_key, cut_id = tl.full((), LEAST_KEY, tl.int64), tl.full((), NO_TOKEN, tl.int32)
    if top_k < V:
        cut_key = _least_with(values_ptr, num_values, low, top_k, greatest, temperature, False, TILE)
        before = _weight_above(values_ptr, num_values, cut_key, greatest, temperature, False, TILE)
        cut_id = _last_of(values_ptr, ids_ptr, num_values, cut_key, top_k - before, HAS_IDS, TILE)
        if top_p < 1.0:
            weight = tl.exp((_value(cut_key.to(tl.int32)) - greatest) / temperature).to(tl.float64)
            total = _weight_above(values_ptr, num_values, cut_key, greatest, temperature, True, TILE)
            total += weight * (top_k - before)
    if top_p < 1.0:
        wanted = top_p * total
        key = _least_with(values_ptr, num_values, tl.maximum(cut_key, low), wanted, greatest, temperature, True, TILE)
        before = _weight_above(values_ptr, num_values, key, greatest, temperature, True, TILE)
        weight = tl.exp((_value(key.to(tl.int32)) - greatest) / temperature).to(tl.float64)
        number = tl.minimum(tl.ceil((wanted - before) / tl.maximum(weight, 1e-300)), 1e9).to(tl.int64)
        last = _last_of(values_ptr, ids_ptr, num_values, key, number, HAS_IDS, TILE)
        cut_id = tl.where(key > cut_key, last, tl.minimum(last, cut_id))
        cut_key = key
    if min_p > 0.0:
        key = _least_likely(values_ptr, num_values, min_p, greatest, temperature, TILE)
        cut_id = tl.where(key > cut_key, NO_TOKEN, cut_id)
        cut_key = tl.maximum(key, cut_key)
    return cut_key, cut_id


@triton.jit
def _weight_above(values_ptr, num_values, key, greatest, temperature, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """How many values (float64) are greater than that of a key, or how likely they are next to the greatest."""
    weights = tl.zeros((TILE,), tl.float64)
    for start in range(0, num_values, TILE):
        place = start + tl.arange(0, TILE)
        values = load_logits(values_ptr, place, num_values)
        is_above = (place < num_values) & (_key(values) > key.to(tl.int32))
        if BY_MASS:
            weights += tl.where(is_above, tl.exp((values - greatest) / temperature), 0.0).to(tl.float64)
        else:
            weights += is_above.to(tl.float64)
    return tl.sum(weights, 0)


@triton.jit
def _least_with(values_ptr, num_values, low, target, greatest, temperature, BY_MASS: tl.constexpr, TILE: tl.constexpr):
    """The least key, not below `low`, with less weight above it than the target."""
    low = low + tl.full((), 0, tl.int64)
    high = _key(greatest).to(tl.int64)
    while low < high:
        middle = low + ((high - low) >> 1)
        is_less = _weight_above(values_ptr, num_values, middle, greatest, temperature, BY_MASS, TILE) < target
        high = tl.where(is_less, middle, high)
        low = tl.where(is_less, low, middle + 1)
    return low


@triton.jit
def _least_likely(values_ptr, num_values, min_p, greatest, temperature, TILE: tl.constexpr):
    """The least key of the tokens that `min_p` keeps."""
    keys = tl.full((TILE,), 2**31 - 1, tl.int32)
    for start in range(0, num_values, TILE):
        place = start + tl.arange(0, TILE)
        values = load_logits(values_ptr, place, num_values)
        is_likely = tl.exp((values - greatest) / temperature).to(tl.float64) >= min_p
        keys = tl.minimum(keys, tl.where(is_likely, _key(values), 2**31 - 1))
    return tl.min(keys, 0).to(tl.int64)


@triton.jit
def _last_of(values_ptr, ids_ptr, num_values, key, number, HAS_IDS: tl.constexpr, TILE: tl.constexpr):
    """The id of the `number`-th token of a key, or one greater than all where there are no more of them."""
    last = tl.full((), NO_TOKEN, tl.int32)
    if _count_to(values_ptr, ids_ptr, num_values, key, last, HAS_IDS, TILE) > number:
        low = tl.full((), 0, tl.int32)
        while low < last:
            middle = low + ((last - low) >> 1)
            is_enough = _count_to(values_ptr, ids_ptr, num_values, key, middle, HAS_IDS, TILE) >= number
            last = tl.where(is_enough, middle, last)
            low = tl.where(is_enough, low, middle + 1)
    return last


@triton.jit
def _count_to(values_ptr, ids_ptr, num_values, key, last, HAS_IDS: tl.constexpr, TILE: tl.constexpr):
    """How many tokens of a key have an id up to `last`."""
    counts = tl.zeros((TILE,), tl.int32)
    for start in range(0, num_values, TILE):
        place = start + tl.arange(0, TILE)
        is_equal = (place < num_values) & (_key(load_logits(values_ptr, place, num_values)) == key.to(tl.int32))
        ids = tl.load(ids_ptr + place, mask=is_equal, other=0) if HAS_IDS else place
        counts += (is_equal & (ids <= last)).to(tl.int32)
    return tl.sum(counts, 0)
