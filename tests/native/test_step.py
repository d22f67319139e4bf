"""The native step computes what the decoder in torch does, within its rounding, in every form and shape.

Two references, both told the same steps:

- `Decoder` in float32 on the same weights. bfloat16 keeps 8 bits, so what is rounded is off by 2^-9 of itself at most
  and by 2^-9.8 in the mean square; a logit of these models is a sum over some ten such roundings in a row, which add
  up like a random walk: 0.4 % of the logits' standard deviation, up to 1 % where attention is sharp. int8 keeps a
  64th of a block's greatest value at worst: three to four times as much. Asked for: root mean square within 2 % and
  6 %, no logit further off than 20 % and 45 %.
- `RoundedDecoder`, which rounds where the native step rounds. The two differ by float32 sums in another order, 1e-6
  at most, until such a difference carries a value over the border between two roundings; that moves one input by
  2^-8 (or a 127th of its block's greatest), and everything that follows from it by up to about as much as rounding
  itself does. Asked for: half of all rows within 1e-5 where few rows follow from each other and there is one layer
  (measured: nine of ten within 1e-6); within 5 % and 15 % everywhere.

All are shares of the standard deviation of the exact logits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.sdpa import SdpaBackend
from engine.models.config import ModelConfig, RopeScaling
from engine.models.decoder import Decoder
from engine.models.step import StepModel
from tests.native.forms import BEST, FORMS, native_decoder, needs_native
from tests.native.rounded import RoundedDecoder
from tests.native.shapes import SHAPES, random_weights
from tests.native.steps import Pool, Rows, make_pool, random_tokens, run, step_inputs

pytestmark = [needs_native, pytest.mark.parametrize("weights", ["bfloat16", "int8"])]

Weights = Literal["bfloat16", "int8"]
Play = Callable[[StepModel, Pool], torch.Tensor]
"""Runs some steps on a model and returns the logits of all their rows."""

ROOT_MEAN_SQUARE = {"bfloat16": 0.02, "int8": 0.06}
FURTHEST = {"bfloat16": 0.20, "int8": 0.45}
FURTHEST_FROM_ROUNDED = {"bfloat16": 0.05, "int8": 0.15}
WITHOUT_A_BORDER = 1e-5

PAGE_SIZES = (16, 5, 32, 1, 4)


def page_size_of(config: ModelConfig) -> int:
    return PAGE_SIZES[config.vocab_size % len(PAGE_SIZES)]


def pool_of(config: ModelConfig, page_size: int, num_tokens: int, dtype: torch.dtype) -> Pool:
    return make_pool(config, num_pages=num_tokens // page_size + 24, page_size=page_size, dtype=dtype, shuffled=3)


@functools.cache
def references(config: ModelConfig, weights: Weights, play: Play, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact and rounded logits, worked out once for all forms and thread counts."""
    exact = Decoder(config, random_weights(config, torch.float32), SdpaBackend())
    rounded = RoundedDecoder(config, random_weights(config), weights)
    size = page_size_of(config)
    return (
        play(exact, pool_of(config, size, num_tokens, torch.float32)),
        play(rounded, pool_of(config, size, num_tokens, torch.float32)),
    )


def errors(found: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """[T, V], in standard deviations."""
    return (found - expected).abs() / exact.std()


def check(
    config: ModelConfig,
    weights: Weights,
    play: Play,
    *,
    form: str = BEST,
    num_threads: int = 1,
    num_tokens: int = 512,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Plays the same steps on all three and holds the native step to both; returns native, rounded and exact logits."""
    native = native_decoder(config, form=form, int8=weights == "int8", num_threads=num_threads)
    found = play(native, pool_of(config, page_size_of(config), num_tokens, torch.bfloat16))
    exact, rounded = references(config, weights, play, num_tokens)
    assert found.dtype == torch.float32
    assert errors(found, exact, exact).square().mean().sqrt() < ROOT_MEAN_SQUARE[weights]
    assert errors(found, exact, exact).max() < FURTHEST[weights]
    assert errors(found, rounded, exact).max() < FURTHEST_FROM_ROUNDED[weights]
    return found, rounded, exact


@functools.cache
def mixed_steps(config: ModelConfig) -> Play:
    """A prompt whole, chunks of others beside it, and decoding rows beside both."""

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        first = pool.lane(random_tokens(config, 150, 1))
        second = pool.lane(random_tokens(config, 9, 2))
        third = pool.lane(random_tokens(config, 70, 3))
        logits = run(model, pool.storage, [Rows(first, 123)])
        logits += run(model, pool.storage, [Rows(first, 1), Rows(second, 8), Rows(third, 30)])
        logits += run(model, pool.storage, [Rows(third, 1), Rows(second, 1), Rows(first, 1)])
        logits += run(model, pool.storage, [Rows(third, 38), Rows(first, 25)])
        return torch.cat(logits)

    return play


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_prompts_chunks_and_decoding_rows_of_every_shape(shape: str, form: str, weights: Weights) -> None:
    check(SHAPES[shape], weights, mixed_steps(SHAPES[shape]), form=form)


@functools.cache
def short_histories(config: ModelConfig) -> Play:
    """Many lanes of a few tokens."""

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        lanes = [pool.lane(random_tokens(config, 6, seed)) for seed in range(20)]
        logits = run(model, pool.storage, [Rows(lane, 5) for lane in lanes])
        return torch.cat(logits + run(model, pool.storage, [Rows(lane, 1) for lane in lanes]))

    return play


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_short_histories_agree_to_the_last_bits_of_float32(shape: str, form: str, weights: Weights) -> None:
    config = replace(SHAPES[shape], num_layers=1)
    found, rounded, exact = check(config, weights, short_histories(config), form=form)
    assert errors(found, rounded, exact).amax(1).quantile(0.5) < WITHOUT_A_BORDER


@functools.cache
def long_contexts(config: ModelConfig) -> Play:
    """Decoding rows behind many keys, alone and few, so that spans are cut over threads; then chunks."""

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        long, longer = pool.lane(random_tokens(config, 660, 1)), pool.lane(random_tokens(config, 1100, 2))
        short = pool.lane(random_tokens(config, 3, 3))
        logits = run(model, pool.storage, [Rows(long, 511), Rows(longer, 1023)])
        for _ in range(3):
            logits += run(model, pool.storage, [Rows(long, 1)])
            logits += run(model, pool.storage, [Rows(longer, 1), Rows(long, 1), Rows(short, 1)])
        logits += run(model, pool.storage, [Rows(longer, 60), Rows(long, 30)])
        return torch.cat(logits)

    return play


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_contexts_of_many_spans(form: str, num_threads: int, weights: Weights) -> None:
    config = SHAPES["smol"]
    check(config, weights, long_contexts(config), form=form, num_threads=num_threads, num_tokens=1800)


@pytest.mark.parametrize("window", [1, 64, 512, 700])
def test_windows_over_the_borders_of_blocks_and_spans(window: int, weights: Weights) -> None:
    config = replace(SHAPES["window"], sliding_window=window)

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        lane, other = pool.lane(random_tokens(config, 1100, 1)), pool.lane(random_tokens(config, 540, 2))
        logits = run(model, pool.storage, [Rows(lane, 1020), Rows(other, 505)])
        for _ in range(12):
            logits += run(model, pool.storage, [Rows(lane, 1), Rows(other, 1)])
        return torch.cat(
            logits + run(model, pool.storage, [Rows(lane, 1)]) + run(model, pool.storage, [Rows(lane, 60)])
        )

    check(config, weights, play, num_threads=2, num_tokens=1700)


def random_mask(num_rows: int, context: int, seed: int) -> torch.Tensor:
    """A third of all keys, later ones included, and no pattern."""
    return torch.rand((num_rows, context), generator=torch.Generator().manual_seed(seed)) < 0.33


@functools.cache
def masked_steps(config: ModelConfig) -> Play:
    """Lanes with masks beside causal ones; the masked one goes on without."""

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        tree, plain = pool.lane(random_tokens(config, 200, 1)), pool.lane(random_tokens(config, 50, 2))
        logits = run(model, pool.storage, [Rows(tree, 90, random_mask(90, 90, 1)), Rows(plain, 40)])
        logits += run(model, pool.storage, [Rows(plain, 3), Rows(tree, 7, random_mask(7, 97, 2))])
        logits += run(model, pool.storage, [Rows(tree, 1, random_mask(1, 98, 3)), Rows(plain, 1)])
        return torch.cat(logits + run(model, pool.storage, [Rows(tree, 102)]))

    return play


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", ["smol", "window", "odd_sizes"])
def test_masks_say_what_a_row_sees_whatever_window_there_is(shape: str, form: str, weights: Weights) -> None:
    check(SHAPES[shape], weights, masked_steps(SHAPES[shape]), form=form)


@functools.cache
def long_masked_steps(config: ModelConfig) -> Play:
    """Masks over several spans, some of which hold nothing that is seen."""

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        lane = pool.lane(random_tokens(config, 1100, 1))
        logits = run(model, pool.storage, [Rows(lane, 1030)])
        logits += run(model, pool.storage, [Rows(lane, 1, random_mask(1, 1031, 1))])
        only_first, only_last = torch.zeros((1, 1032), dtype=torch.bool), torch.zeros((1, 1033), dtype=torch.bool)
        only_first[0, 3] = only_last[0, 1030] = True
        logits += run(model, pool.storage, [Rows(lane, 1, only_first)])
        logits += run(model, pool.storage, [Rows(lane, 1, only_last)])
        return torch.cat(logits + run(model, pool.storage, [Rows(lane, 20, random_mask(20, 1053, 2))]))

    return play


@pytest.mark.parametrize("num_threads", [1, 3])
def test_masks_over_many_spans(num_threads: int, weights: Weights) -> None:
    config = SHAPES["smol"]
    check(config, weights, long_masked_steps(config), num_threads=num_threads, num_tokens=1100)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_sees_nothing_gets_zeros_from_attention(form: str, weights: Weights) -> None:
    config = SHAPES["smol"]
    native = native_decoder(config, form=form, int8=weights == "int8")
    rounded = RoundedDecoder(config, random_weights(config), weights)

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        lane = pool.lane(random_tokens(config, 40, 1))
        mask = torch.ones((40, 40), dtype=torch.bool).tril()
        mask[[0, 7, 39]] = False
        return run(model, pool.storage, [Rows(lane, 40, mask)])[0]

    found, expected = play(native, make_pool(config)), play(rounded, make_pool(config, dtype=torch.float32))
    assert torch.isfinite(found).all()
    assert errors(found, expected, expected).max() < FURTHEST_FROM_ROUNDED[weights]


SCALINGS: tuple[RopeScaling | None, ...] = (
    None,
    RopeScaling(kind="linear", factor=8.0),
    RopeScaling(kind="llama3", factor=8.0, original_max_position=64),
    RopeScaling(kind="factors", factors=tuple(1.0 + index for index in range(16))),
)


POSITIONS = [*range(900, 920), *range(40), 100_000, 100_001, 3, 3, 3, *range(2000, 1990, -1)]


@functools.cache
def moved_steps(config: ModelConfig) -> Play:
    """Tokens at other positions than their places in the cache."""

    def play(model: StepModel, pool: Pool) -> torch.Tensor:
        lane = pool.lane(random_tokens(config, len(POSITIONS), 1), POSITIONS)
        other = pool.lane(random_tokens(config, 20, 2), [7] * 20)
        logits = run(model, pool.storage, [Rows(lane, 61), Rows(other, 19)])
        logits += run(model, pool.storage, [Rows(lane, 1), Rows(other, 1)])
        return torch.cat(logits + run(model, pool.storage, [Rows(lane, len(POSITIONS) - 62)]))

    return play


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling.kind if scaling else "none")
def test_positions_are_those_given_not_the_places_in_the_cache(
    scaling: RopeScaling | None, form: str, weights: Weights
) -> None:
    config = replace(SHAPES["smol"], rope_scaling=scaling)
    found, *_ = check(config, weights, moved_steps(config), form=form)
    pool = make_pool(config)
    lane = pool.lane(random_tokens(config, len(POSITIONS), 1))
    in_order = run(native_decoder(config, form=form, int8=weights == "int8"), pool.storage, [Rows(lane, 61)])[0]
    assert not torch.allclose(found[:61], in_order, atol=1.0)


@pytest.mark.parametrize("readouts", [[], [0], [4], [4, 0, 4, 2], [1] * 40, list(range(5))], ids=len)
def test_any_rows_are_read_out_in_the_order_asked_for(readouts: list[int], weights: Weights) -> None:
    config = SHAPES["odd_sizes"]
    native = native_decoder(config, int8=weights == "int8", num_threads=2)
    pool = make_pool(config)
    work = [Rows(pool.lane(random_tokens(config, 3, 1)), 3), Rows(pool.lane(random_tokens(config, 2, 2)), 2)]
    every = native.forward(step_inputs(pool.storage, work))
    some = native.forward(step_inputs(pool.storage, work, readouts))
    assert some.shape == (len(readouts), config.vocab_size)
    assert torch.equal(some, every[readouts])


def test_steps_without_lanes_and_lanes_without_rows_change_nothing(weights: Weights) -> None:
    config = SHAPES["smol"]
    native = native_decoder(config, int8=weights == "int8")
    pool = make_pool(config)
    lane, idle = pool.lane(random_tokens(config, 20, 1)), pool.lane(random_tokens(config, 20, 2))
    alone = run(native, pool.storage, [Rows(lane, 20)])[0]
    run(native, pool.storage, [Rows(idle, 9)])
    before = [layer.clone() for layer in pool.storage.layers]
    assert native.forward(step_inputs(pool.storage, [])).shape == (0, config.vocab_size)
    assert native.forward(step_inputs(pool.storage, [Rows(idle, 0)])).shape == (0, config.vocab_size)
    assert all(
        torch.equal(a.view(torch.int16), b.view(torch.int16)) for a, b in zip(before, pool.storage.layers, strict=True)
    )
    again = pool.lane(lane.token_ids)
    logits = run(native, pool.storage, [Rows(idle, 0), Rows(again, 20), Rows(idle, 0)])
    assert torch.equal(logits[1], alone)


def test_one_decoder_serves_several_pools_in_turn(weights: Weights) -> None:
    config = SHAPES["smol"]
    native = native_decoder(config, int8=weights == "int8")
    alone = run(native, (pool := make_pool(config)).storage, [Rows(pool.lane(random_tokens(config, 30, 1)), 30)])[0]
    pools = [make_pool(config, page_size=size) for size in (16, 4, 32)]
    lanes = [pool.lane(random_tokens(config, 30, 1)) for pool in pools]
    for chunk, first in ((20, 0), (10, 20)):
        for pool, lane in zip(pools, lanes, strict=True):
            assert torch.equal(run(native, pool.storage, [Rows(lane, chunk)])[0], alone[first : first + chunk])


LENGTHS = st.integers(1, 150) | st.integers(1, 20)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_shapes_lanes_chunks_masks_and_pages(data: st.DataObject, weights: Weights) -> None:
    kv_heads = data.draw(st.integers(1, 3), "kv_heads")
    config = replace(
        SHAPES["plain"],
        num_layers=1,
        num_kv_heads=kv_heads,
        num_heads=kv_heads * data.draw(st.sampled_from([1, 2, 3, 4, 7, 8]), "group"),
        head_dim=data.draw(st.sampled_from([8, 16, 24, 32, 64, 80, 96, 128, 256]), "head_dim"),
        hidden_size=data.draw(st.integers(12, 140), "hidden_size"),
        intermediate_size=data.draw(st.integers(1, 200), "intermediate_size"),
        vocab_size=data.draw(st.integers(2, 150), "vocab_size"),
        sliding_window=data.draw(st.none() | st.integers(1, 200), "window"),
        tied_embeddings=data.draw(st.booleans(), "tied"),
        attention_bias=data.draw(st.booleans(), "bias"),
        qk_norm=data.draw(st.booleans(), "qk_norm"),
    )
    plans = data.draw(st.lists(st.lists(LENGTHS, min_size=1, max_size=4), min_size=1, max_size=5), "chunks")
    masked = data.draw(st.frozensets(st.integers(0, len(plans) - 1), max_size=1), "masked")
    num_threads = data.draw(st.integers(1, 3), "threads")
    page_size = data.draw(st.sampled_from([1, 4, 5, 16, 32]), "page_size")
    form = data.draw(st.sampled_from(FORMS), "form")
    seed = data.draw(st.integers(0, 1000), "seed")

    native = native_decoder(config, form=form, int8=weights == "int8", num_threads=num_threads, seed=seed)
    rounded = RoundedDecoder(config, random_weights(config, seed=seed), weights)
    total = sum(map(sum, plans))
    found = play_plans(native, pool_of(config, page_size, total, torch.bfloat16), plans, masked)
    expected = play_plans(rounded, pool_of(config, page_size, total, torch.float32), plans, masked)
    # The mean, because narrow models with sharp heads make much of one input that was rounded the other way.
    assert (found - expected).square().mean().sqrt() < FURTHEST_FROM_ROUNDED[weights] * expected.square().mean().sqrt()


def play_plans(model: StepModel, pool: Pool, plans: Sequence[Sequence[int]], masked: frozenset[int]) -> torch.Tensor:
    """Each lane's next chunk in every step, as long as it has one."""
    lanes = [pool.lane(random_tokens(model.config, sum(plan), seed)) for seed, plan in enumerate(plans)]
    logits = []
    for step in range(max(map(len, plans))):
        work = []
        for index, (lane, plan) in enumerate(zip(lanes, plans, strict=True)):
            if step < len(plan):
                rows = plan[step]
                mask = random_mask(rows, lane.num_computed + rows, step) if index in masked else None
                work.append(Rows(lane, rows, mask))
        logits += run(model, pool.storage, work)
    return torch.cat(logits)
