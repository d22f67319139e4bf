"""A row's logits are the same to the bit however its step was put together, and nothing foreign reaches it."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
import torch

from engine.kv.storage import KVStorage
from engine.models.config import ModelConfig
from engine.native.decoder import NativeDecoder
from tests.native.forms import FORMS, native_decoder, needs_native
from tests.native.shapes import SHAPES, random_weights
from tests.native.steps import Lane, Pool, Rows, make_pool, random_tokens, run, run_chunks

pytestmark = [
    needs_native,
    pytest.mark.parametrize("form", FORMS),
    pytest.mark.parametrize("weights", ["bfloat16", "int8"]),
]

SOME_SHAPES = ("smol", "odd_sizes", "normed", "window", "group_of_seven", "everything")
HUGE = 3e38
"""A product with it overflows; hidden slots of a lane hold what the lane itself computed, so not NaN."""

LENGTHS = (1, 150, 37, 64, 9)


@functools.cache
def decoder(shape: str, form: str, weights: str, num_threads: int = 1) -> NativeDecoder:
    return native_decoder(SHAPES[shape], form=form, int8=weights == "int8", num_threads=num_threads)


@functools.cache
def alone(shape: str, form: str, weights: str) -> list[torch.Tensor]:
    """Logits of every history, each computed alone, at once, by one thread."""
    native = decoder(shape, form, weights)
    pools = [make_pool(SHAPES[shape]) for _ in LENGTHS]
    return [
        run_chunks(native, pool, history(pool, SHAPES[shape], index), [length])
        for index, (pool, length) in enumerate(zip(pools, LENGTHS, strict=True))
    ]


def history(pool: Pool, config: ModelConfig, index: int) -> Lane:
    return pool.lane(random_tokens(config, LENGTHS[index], index))


def random_chunks(length: int, source: random.Random) -> list[int]:
    """Cuts a length into pieces, many of them single rows."""
    chunks = []
    while length:
        chunks.append(min(length, source.choice((1, 1, 2, 3, 5, 17, 33, 70))))
        length -= chunks[-1]
    return chunks


def in_random_steps(native: NativeDecoder, pool: Pool, seed: int) -> list[torch.Tensor]:
    """Logits of every history, computed in chunks beside chunks of the others, in changing order."""
    source = random.Random(seed)
    lanes = [history(pool, native.config, index) for index in range(len(LENGTHS))]
    chunks = [random_chunks(length, source) for length in LENGTHS]
    found: list[list[torch.Tensor]] = [[] for _ in lanes]
    while any(chunks):
        chosen = [index for index, left in enumerate(chunks) if left and source.random() < 0.7]
        source.shuffle(chosen)
        logits = run(native, pool.storage, [Rows(lanes[index], chunks[index].pop()) for index in chosen])
        for index, rows in zip(chosen, logits, strict=True):
            found[index].append(rows)
    return [torch.cat(rows) for rows in found]


def assert_same_bits(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert torch.isfinite(one).all()
        assert torch.equal(one.view(torch.int32), other.view(torch.int32)), f"history {index} differs"


@pytest.mark.parametrize("shape", SOME_SHAPES)
def test_batched_equals_alone(shape: str, form: str, weights: str) -> None:
    native, pool = decoder(shape, form, weights), make_pool(SHAPES[shape])
    work = [Rows(history(pool, SHAPES[shape], index), length) for index, length in enumerate(LENGTHS)]
    assert_same_bits(run(native, pool.storage, work), alone(shape, form, weights))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SOME_SHAPES)
def test_chunked_and_batched_by_any_number_of_threads_equals_alone(
    shape: str, num_threads: int, form: str, weights: str
) -> None:
    native = decoder(shape, form, weights, num_threads)
    for seed in range(3):
        found = in_random_steps(native, make_pool(SHAPES[shape], shuffled=seed), seed)
        assert_same_bits(found, alone(shape, form, weights))


@pytest.mark.parametrize("page_size", [1, 4, 5, 16, 32, 48])
@pytest.mark.parametrize("shape", SOME_SHAPES)
def test_scattered_pages_of_any_size_equal_pages_in_order(shape: str, page_size: int, form: str, weights: str) -> None:
    pool = make_pool(SHAPES[shape], num_pages=330 // page_size + 8, page_size=page_size, shuffled=page_size)
    assert_same_bits(in_random_steps(decoder(shape, form, weights, 2), pool, 7), alone(shape, form, weights))


@pytest.mark.parametrize("shape", ["smol", "window"])
def test_long_contexts_alone_beside_others_and_in_chunks(shape: str, form: str, weights: str) -> None:
    config = replace(SHAPES[shape], sliding_window=600 if SHAPES[shape].sliding_window else None)
    tokens = random_tokens(config, 1040, 1)
    natives = [native_decoder(config, form=form, int8=weights == "int8", num_threads=count) for count in (1, 2, 3)]
    pool = make_pool(config, num_pages=66 + 40)
    whole = pool.lane(tokens)
    expected = run_chunks(natives[0], pool, whole, [1040])[1020:]
    for native in natives:
        for chunks in ([1] * 20, [3, 1, 7, 9]):
            assert_same_bits([run_chunks(native, pool, replace(whole, num_computed=1020), chunks)], [expected])
        others = [Rows(pool.lane(random_tokens(config, 2, seed)), 1) for seed in range(12)]
        again = Rows(replace(whole, num_computed=1020), 1)
        assert_same_bits(run(native, pool.storage, [*others, again])[-1:], [expected[:1]])


@pytest.mark.parametrize("shape", ["smol", "odd_sizes"])
def test_masked_rows_beside_others_equal_masked_rows_alone(shape: str, form: str, weights: str) -> None:
    config, native = SHAPES[shape], decoder(shape, form, weights, 2)
    pool = make_pool(config)
    tree, other = pool.lane(random_tokens(config, 90, 1)), pool.lane(random_tokens(config, 60, 2))
    run(native, pool.storage, [Rows(tree, 80), Rows(other, 30)])
    mask = torch.rand((10, 90), generator=torch.Generator().manual_seed(1)) < 0.4
    together = run(native, pool.storage, [Rows(other, 30), Rows(tree, 10, mask)])[1]
    apart = run(native, pool.storage, [Rows(replace(tree, num_computed=80), 10, mask)])[0]
    assert_same_bits([together], [apart])
    # Rows 3 .. 9 one by one: what a row sees is what counts, not the step in which it was stored.
    for row in range(3, 10):
        visible = mask[row : row + 1].clone()
        if visible[0, 80 + row + 1 :].any():
            continue
        lane = replace(tree, num_computed=80 + row)
        assert_same_bits(run(native, pool.storage, [Rows(lane, 1, visible[:, : 81 + row])]), [together[row : row + 1]])


def test_a_causal_mask_equals_no_mask(form: str, weights: str) -> None:
    config, native = SHAPES["smol"], decoder("smol", form, weights)
    pool = make_pool(config)
    expected = run(native, pool.storage, [Rows(history(pool, config, 1), 150)])
    mask = torch.ones((150, 150), dtype=torch.bool).tril()
    assert_same_bits(run(native, pool.storage, [Rows(history(pool, config, 1), 150, mask)]), expected)


@pytest.mark.parametrize("page_size", [16, 5])
def test_nan_in_free_slots_and_in_pages_of_others_reaches_no_lane(page_size: int, form: str, weights: str) -> None:
    """Every pool begins full of NaN; here two broken lanes add their own, in pages between those of the others."""
    config = SHAPES["smol"]
    model = random_weights(config)
    model.embedding[1] = float("nan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WYE_NATIVE_FORM", form)
        native = NativeDecoder(config, model, num_threads=2, int8=weights == "int8")
    pool = make_pool(config, num_pages=500 // page_size, page_size=page_size, shuffled=1)
    tokens = [[2 + token % 100 for token in random_tokens(config, length, length)] for length in LENGTHS]
    expected = [run_chunks(native, pool, pool.lane(ids), [len(ids)]) for ids in tokens]
    pool = make_pool(config, num_pages=500 // page_size, page_size=page_size, shuffled=2)
    broken = [pool.lane([1] * 40), pool.lane([5, 1, 7, 1])]
    lanes = [pool.lane(ids) for ids in tokens]
    found = run(native, pool.storage, [Rows(broken[0], 39), *(Rows(lane, len(lane.token_ids)) for lane in lanes[:3])])[
        1:
    ]
    found += run(native, pool.storage, [Rows(broken[1], 4), *(Rows(lane, len(lane.token_ids)) for lane in lanes[3:])])[
        1:
    ]
    for one, other in zip(found, expected, strict=True):
        # The head is tied, so the broken token's own logit is NaN or what int8 makes of it.
        keep = [token for token in range(config.vocab_size) if token // 16 != 0]
        assert torch.isfinite(one[:, keep]).all()
        assert torch.equal(one[:, keep], other[:, keep])


@pytest.mark.parametrize("page_size", [16, 5])
@pytest.mark.parametrize("num_computed", [40, 48, 49, 63, 64, 100])
def test_nan_in_stale_slots_behind_a_context_reaches_no_row(
    num_computed: int, page_size: int, form: str, weights: str
) -> None:
    config, native = SHAPES["smol"], decoder("smol", form, weights)
    pool = make_pool(config, page_size=page_size)
    lane = pool.lane(random_tokens(config, 120, 1))
    expected = run_chunks(native, pool, lane, [num_computed, 1])[-1]
    pool = make_pool(config, page_size=page_size)
    lane = pool.lane(random_tokens(config, 120, 1))
    run_chunks(native, pool, lane, [120])
    spoil(pool, lane, range(num_computed, 120), float("nan"))
    lane.num_computed = num_computed
    assert_same_bits([run_chunks(native, pool, lane, [1])[-1]], [expected])


@pytest.mark.parametrize("page_size", [16, 5])
def test_values_in_slots_that_a_mask_hides_reach_no_row(page_size: int, form: str, weights: str) -> None:
    config, native = SHAPES["smol"], decoder("smol", form, weights)
    pool = make_pool(config, page_size=page_size)
    lane = pool.lane(random_tokens(config, 120, 1))
    run_chunks(native, pool, lane, [110])
    mask = torch.ones((2, 112), dtype=torch.bool)
    mask[:, [3, 40, 41, 42, 99]] = False
    expected = run(native, pool.storage, [Rows(replace(lane, num_computed=110), 2, mask)])
    spoil(pool, lane, [3, 40, 41, 42, 99], HUGE)
    assert_same_bits(run(native, pool.storage, [Rows(replace(lane, num_computed=110), 2, mask)]), expected)


@pytest.mark.parametrize("page_size", [16, 5])
def test_values_in_slots_before_the_window_reach_no_row(page_size: int, form: str, weights: str) -> None:
    config, native = SHAPES["window"], decoder("window", form, weights)
    pool = make_pool(config, page_size=page_size)
    lane = pool.lane(random_tokens(config, 120, 1))
    run_chunks(native, pool, lane, [110])
    expected = run_chunks(native, pool, replace(lane, num_computed=110), [1])
    spoil(pool, lane, range(111 - 24), HUGE)
    assert_same_bits([run_chunks(native, pool, replace(lane, num_computed=110), [1])], [expected])


def spoil(pool: Pool, lane: Lane, places: Iterable[int], value: float) -> None:
    """Overwrites the K and V of some of a lane's tokens in all layers."""
    storage = pool.storage
    for place in places:
        page, offset = lane.pages[place // storage.page_size], place % storage.page_size
        for layer in storage.layers:
            for half, is_key in ((layer[0, page], True), (layer[1, page], False)):
                half.view(-1)[places_in_page(storage, offset, is_key=is_key)] = value


def places_in_page(storage: KVStorage, offset: int, *, is_key: bool) -> torch.Tensor:
    """Where a token's K or V lie in a page as the native step lays it out; see `PageShape` in src/layout.h."""
    size, dim = storage.page_size, storage.head_dim
    head, d = torch.arange(storage.num_kv_heads)[:, None], torch.arange(dim)
    if size % 16 or dim % 16:
        return (offset * storage.num_kv_heads + head) * dim + d
    tile, column = head * (size // 16) + offset // 16, offset % 16
    if is_key:
        return ((tile * (dim // 2) + d // 2) * 16 + column) * 2 + d % 2
    return (((tile * (dim // 16) + d // 16) * 8 + column // 2) * 16 + d % 16) * 2 + column % 2
