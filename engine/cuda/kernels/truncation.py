"""Where the part of the vocabulary that a lane draws from ends: `engine.sampling.truncation`, without sorting.

Tokens stand in order of falling logits, the lower id first among equals; `top_k`, `top_p` and `min_p` each keep a
beginning of that order, so what all keep ends at one token, the cut. A rule's cut is found by narrowing a range of
values down: how many tokens, or how much mass, come before each of three that quarter it?

Few tokens are looked at: the k-th greatest of the peaks (maxima of some tokens each) has at least k tokens that are not
less, so where a lane keeps few, all come from few peaks. They are gathered first. Where that does not suffice, a whole
row is looked at, until the range has few tokens, and those are gathered.

Logits are compared as integers of the same order, which can be quartered.

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
FEW_ROUNDS: tl.constexpr = tl.constexpr(5)
"""After which about a thousandth of a range is left."""
MANY_ROUNDS: tl.constexpr = tl.constexpr(64)
"""More than are needed to the end."""


@triton.jit(do_not_specialize_on_alignment=["rows_ptr"])
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
        num_listed = _gather_peaks(
            lane_ptr, peaks_ptr + lane * P, blocks_ptr + lane * P, listed_ptr, listed_ids_ptr,
            bound, V, P, PEAKS, PEAK, CAPACITY, GATHERED,
        )  # fmt: skip
        is_listed = num_listed <= CAPACITY
        if is_listed & (not is_sure):
            mass = _weight_above(listed_ptr, num_listed, cut_key, greatest, temperature, True, TILE)
            is_listed = (top_k == V) & (mass > top_p * total * (1 + MARGIN))
        # Now either a list of all that the lane keeps, or its whole row.
        source_ptr = tl.where(is_listed, listed_ptr, lane_ptr)
        num_values = tl.where(is_listed, num_listed, V)
        low = tl.where(is_listed, _key(bound), LEAST_KEY).to(tl.int64)
        if top_k < V:
            cut_key, before, cut_id = _find(
                source_ptr, num_values, is_listed, listed_ptr, listed_ids_ptr, low, top_k.to(tl.float64),
                greatest, temperature, False, CAPACITY, TILE,
            )  # fmt: skip
            if top_p < 1.0:
                total = _weight_above(source_ptr, num_values, cut_key, greatest, temperature, True, TILE)
                total += _weight(cut_key, greatest, temperature) * (top_k - before)
        if top_p < 1.0:
            key, before, last = _find(
                source_ptr, num_values, is_listed, listed_ptr, listed_ids_ptr, tl.maximum(cut_key, low), top_p * total,
                greatest, temperature, True, CAPACITY, TILE,
            )  # fmt: skip
            cut_id = tl.where(key > cut_key, last, tl.minimum(last, cut_id))
            cut_key = key
        if min_p > 0.0:
            key = _least_likely(source_ptr, num_values, min_p, greatest, temperature, TILE)
            cut_id = tl.where(key > cut_key, NO_TOKEN, cut_id)
            cut_key = tl.maximum(key, cut_key)
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
    peak = tl.arange(0, PEAKS)
    least = _key(tl.min(tl.load(peaks_ptr + peak, mask=peak < P, other=float("inf")), 0)).to(tl.int64)
    most = _key(greatest).to(tl.int64)
    key, _ = _narrow(peaks_ptr, P, least, most, number, MANY_ROUNDS, greatest, temperature, False, PEAKS)
    bound = tl.where(is_top_k_sure | (top_p < 1.0), _value(key.to(tl.int32)), float("-inf"))
    by_min_p = greatest + temperature * tl.log(tl.maximum(min_p, 1e-300)).to(tl.float32)
    by_min_p -= 1e-3 + 1e-5 * tl.abs(by_min_p)
    # What top_p leaves of what top_k keeps depends on the mass of all of that: none of it may be missing then.
    is_min_p_bound = (min_p > 0.0) & ((top_p >= 1.0) | (top_k == V))
    by_min_p = tl.where(is_min_p_bound, by_min_p, float("-inf"))
    return tl.maximum(bound, by_min_p), is_top_k_sure | (bound <= by_min_p)


@triton.jit
def _gather_peaks(
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
def _find(
    source_ptr,
    num_values,
    has_ids,
    listed_ptr,
    listed_ids_ptr,
    low,
    target,
    greatest,
    temperature,
    BY_MASS: tl.constexpr,
    CAPACITY: tl.constexpr,
    TILE: tl.constexpr,
):
    """The last token that a rule keeps, which those are that have less weight before them than the target.

    Returns:
        Its key, the weight of all greater ones, and its id or one greater than all where its equals are kept too.
    """
    high = _key(greatest).to(tl.int64)
    base = tl.full((), 0.0, tl.float64)
    if num_values > CAPACITY:
        low, high = _narrow(source_ptr, num_values, low, high, target, FEW_ROUNDS, greatest, temperature, BY_MASS, TILE)
        num_listed = _gather_range(source_ptr, num_values, listed_ptr, listed_ids_ptr, low, high, CAPACITY, TILE)
        if num_listed <= CAPACITY:
            base = _weight_above(source_ptr, num_values, high, greatest, temperature, BY_MASS, TILE)
            source_ptr = tl.where(num_listed <= CAPACITY, listed_ptr, source_ptr)
            num_values = num_listed
            has_ids = num_listed <= CAPACITY
    rest = target - base
    key, _ = _narrow(source_ptr, num_values, low, high, rest, MANY_ROUNDS, greatest, temperature, BY_MASS, TILE)
    before = _weight_above(source_ptr, num_values, key, greatest, temperature, BY_MASS, TILE)
    number = rest - before
    if BY_MASS:
        number /= tl.maximum(_weight(key, greatest, temperature), 1e-300)
    number = tl.minimum(tl.ceil(number), 1e9).to(tl.int32)
    last = _last_of(source_ptr, num_values, has_ids, listed_ids_ptr, key, number, TILE)
    return key, base + before, last


@triton.jit
def _gather_range(
    source_ptr,
    num_values,
    listed_ptr,
    listed_ids_ptr,
    low,
    high,
    CAPACITY: tl.constexpr,
    TILE: tl.constexpr,
):
    """Lists the tokens of a row with keys from `low` to `high`; returns how many, or more than there is room for."""
    tl.debug_barrier()  # others may still read the list
    num_listed = tl.full((), 0, tl.int32)
    start = tl.full((), 0, tl.int32)
    while (start < num_values) & (num_listed <= CAPACITY):
        ids = start + tl.arange(0, TILE)
        values = load_logits(source_ptr, ids, num_values)
        keys = _key(values)
        is_listed = (keys >= low.to(tl.int32)) & (keys <= high.to(tl.int32)) & (ids < num_values)
        at = num_listed + tl.cumsum(is_listed.to(tl.int32), 0) - 1
        tl.store(listed_ptr + at, values, mask=is_listed & (at < CAPACITY))
        tl.store(listed_ids_ptr + at, ids, mask=is_listed & (at < CAPACITY))
        num_listed += tl.sum(is_listed.to(tl.int32), 0)
        start += TILE
    tl.debug_barrier()
    return num_listed


@triton.jit
def _weight(key, greatest, temperature):
    """How likely the token of a key is next to the greatest, float64."""
    return tl.exp((_value(key.to(tl.int32)) - greatest) / temperature).to(tl.float64)


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
def _narrow(
    values_ptr,
    num_values,
    low,
    high,
    target,
    num_rounds,
    greatest,
    temperature,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Narrows down a range of keys, `high` included, to the least with less weight above it than the target."""
    round_number = tl.full((), 0, tl.int32)
    while (low < high) & (round_number < num_rounds):
        step = (high - low) >> 2
        first, second, third = low + step, low + 2 * step, low + 3 * step
        firsts, seconds, thirds = (
            tl.zeros((TILE,), tl.float64),
            tl.zeros((TILE,), tl.float64),
            tl.zeros((TILE,), tl.float64),
        )
        for start in range(0, num_values, TILE):
            place = start + tl.arange(0, TILE)
            values = load_logits(values_ptr, place, num_values)
            keys = tl.where(place < num_values, _key(values), LEAST_KEY)
            weights = tl.full((TILE,), 1.0, tl.float64)
            if BY_MASS:
                weights = tl.exp((values - greatest) / temperature).to(tl.float64)
            firsts += tl.where(keys > first.to(tl.int32), weights, 0.0)
            seconds += tl.where(keys > second.to(tl.int32), weights, 0.0)
            thirds += tl.where(keys > third.to(tl.int32), weights, 0.0)
        is_first, is_second, is_third = (
            tl.sum(firsts, 0) < target,
            tl.sum(seconds, 0) < target,
            tl.sum(thirds, 0) < target,
        )
        high = tl.where(is_first, first, tl.where(is_second, second, tl.where(is_third, third, high)))
        low = tl.where(is_first, low, tl.where(is_second, first + 1, tl.where(is_third, second + 1, third + 1)))
        round_number += 1
    return low, high


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
def _last_of(values_ptr, num_values, has_ids, ids_ptr, key, number, TILE: tl.constexpr):
    """The id of the `number`-th token of a key, or one greater than all where there are no more of them."""
    last = tl.full((), NO_TOKEN, tl.int32)
    if _count_to(values_ptr, num_values, has_ids, ids_ptr, key, last, TILE) > number:
        low = tl.full((), 0, tl.int32)
        while low < last:
            middle = low + ((last - low) >> 1)
            is_enough = _count_to(values_ptr, num_values, has_ids, ids_ptr, key, middle, TILE) >= number
            last = tl.where(is_enough, middle, last)
            low = tl.where(is_enough, low, middle + 1)
    return last


@triton.jit
def _count_to(values_ptr, num_values, has_ids, ids_ptr, key, last, TILE: tl.constexpr):
    """How many tokens of a key have an id up to `last`."""
    counts = tl.zeros((TILE,), tl.int32)
    for start in range(0, num_values, TILE):
        place = start + tl.arange(0, TILE)
        is_equal = (place < num_values) & (_key(load_logits(values_ptr, place, num_values)) == key.to(tl.int32))
        ids = tl.where(has_ids, tl.load(ids_ptr + place, mask=is_equal & has_ids, other=0), place)
        counts += (is_equal & (ids <= last)).to(tl.int32)
    return tl.sum(counts, 0)
