"""One token a lane by the Gumbel-max trick, in two forms that choose alike."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.draw import TokenDraw, _costs, _greatest_cost, first_argmax
from engine.sampling.random import fill_noise, position_keys, stream_key, token_hashes
from tests.engine.sampling.reference import gumbel_noise

CPU = torch.device("cpu")
SIZES = st.sampled_from([1, 2, 63, 64, 65, 128, 300, 1000])


def keys_of(num_lanes: int, *, seed: int = 0, first_position: int = 0) -> torch.Tensor:
    positions = torch.arange(first_position, first_position + num_lanes)
    return position_keys(torch.full((num_lanes,), stream_key(seed, 0)), positions)


@given(size=SIZES, seed=st.integers(0, 2**32), levels=st.integers(1, 50))
def test_first_argmax_takes_the_lowest_id_among_equals(size: int, seed: int, levels: int) -> None:
    values = np.random.default_rng(seed).integers(-levels, levels, (3, size)).astype(np.float32)
    assert first_argmax(torch.from_numpy(values)).tolist() == values.argmax(axis=1).tolist()


def test_first_argmax_of_nothing_but_minus_infinity_is_0() -> None:
    assert first_argmax(torch.full((2, 500), -math.inf)).tolist() == [0, 0]


@given(
    size=SIZES,
    seed=st.integers(-(2**63), 2**63 - 1),
    temperature=st.floats(0.01, 2.0),
    spread=st.floats(0.0, 30.0),
    hidden=st.floats(0.0, 0.99),
)
def test_a_draw_is_the_argmax_of_scaled_logits_plus_noise(
    size: int, seed: int, temperature: float, spread: float, hidden: float
) -> None:
    rng = np.random.default_rng(abs(seed))
    logits = (rng.standard_normal((2, size)) * spread).astype(np.float32)
    logits[rng.random((2, size)) < hidden] = -np.inf
    temperatures = torch.tensor([temperature, 1.0])
    keys = keys_of(2, seed=seed, first_position=5)
    drawn = TokenDraw(size, CPU).draw(torch.from_numpy(logits), temperatures, keys).tolist()
    for lane, token in enumerate(drawn):
        noise = gumbel_noise(seed, 0, 5 + lane, size)
        scores = logits[lane].astype(np.float64) / float(temperatures[lane]) + noise
        assert scores[token] >= scores.max() - 1e-5 * (1 + abs(scores.max())) or not np.isfinite(scores.max())


def test_both_forms_draw_alike_over_a_real_vocabularys_size() -> None:
    size = 49_153
    draw = TokenDraw(size, CPU)
    generator = torch.Generator().manual_seed(0)
    for spread in (0.0, 1.0, 4.0, 20.0):
        logits = torch.randn((4, size), generator=generator) * spread
        temperature = torch.tensor([0.01, 0.5, 1.0, 2.0])
        keys = keys_of(4, seed=int(spread))
        bounded = draw._draw_bounded(logits, temperature[:, None], keys)
        assert torch.equal(bounded, draw._draw_direct(logits, temperature[:, None], keys))


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 2.0])
def test_the_bound_of_a_score_is_never_below_it_nor_far_above(temperature: float) -> None:
    size = 200_000
    keys, temperatures = keys_of(2), torch.full((2, 1), temperature)
    logits = torch.randn((2, size), generator=torch.Generator().manual_seed(0)) * 8
    out, scratch = torch.empty((2, size), dtype=torch.int32), torch.empty((2, size), dtype=torch.int32)
    costs = _costs(
        fill_noise(out, scratch, token_hashes(size, CPU), keys), logits, temperatures, torch.empty((2, size))
    )
    scores = TokenDraw(size, CPU).score(logits, torch.arange(size).repeat(2, 1), temperatures, keys)
    assert (costs <= _greatest_cost(scores)).all()
    high_noise = scores - logits / temperatures > 5
    assert high_noise.any()
    far_above = _greatest_cost(scores - 0.1 - 1e-6 * scores.abs())
    assert (costs > _greatest_cost(scores + 0.1) - (far_above - _greatest_cost(scores)))[high_noise].all()


def test_a_wide_batch_is_drawn_in_parts_that_do_not_matter() -> None:
    size = 2**19
    draw = TokenDraw(size, CPU)
    logits = torch.randn((6, size), generator=torch.Generator().manual_seed(1))
    whole = draw.draw(logits, torch.ones(6), keys_of(6))
    alone = [draw.draw(logits[lane : lane + 1], torch.ones(1), keys_of(6)[lane : lane + 1]) for lane in range(6)]
    assert torch.equal(whole, torch.cat(alone))


def test_a_row_of_minus_infinity_draws_0_whatever_its_neighbours() -> None:
    logits = torch.full((3, 1000), -math.inf)
    logits[1, 700] = 0.0
    assert TokenDraw(1000, CPU).draw(logits, torch.ones(3), keys_of(3)).tolist() == [0, 700, 0]


def test_equal_scores_go_to_the_lowest_id() -> None:
    # Noise vanishes beside 1e9, so every token scores the same.
    assert TokenDraw(1000, CPU).draw(torch.full((1, 1000), -1e9), torch.full((1,), 1e-9), keys_of(1)).tolist() == [0]


@pytest.mark.parametrize("seed", [0, -3, 2**63 - 1])
@pytest.mark.parametrize("size", [7, 200])
def test_tokens_come_as_often_as_softmax_says(seed: int, size: int) -> None:
    num_draws = 20_000
    logits = torch.linspace(2, -2, size)
    expected = (logits / 0.8).softmax(dim=0).double() * num_draws
    drawn = TokenDraw(size, CPU).draw(
        logits.repeat(num_draws, 1), torch.full((num_draws,), 0.8), keys_of(num_draws, seed=seed)
    )
    counts = torch.bincount(drawn, minlength=size).double()
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < (size - 1) + 6 * math.sqrt(2 * (size - 1))


@pytest.mark.parametrize("other", [(0, 1), (1, 0), (-1, 0)])
def test_streams_and_seeds_draw_independently(other: tuple[int, int]) -> None:
    num_draws, size = 20_000, 4
    logits = torch.zeros((num_draws, size))
    draw = TokenDraw(size, CPU)
    positions = torch.arange(num_draws)
    first, second = (
        draw.draw(logits, torch.ones(num_draws), position_keys(torch.full((num_draws,), stream_key(*one)), positions))
        for one in ((0, 0), other)
    )
    counts = torch.bincount(first * size + second, minlength=size * size).double()
    expected = num_draws / size**2
    assert ((counts - expected) ** 2 / expected).sum().item() < 15 + 6 * math.sqrt(30)


def test_neighbouring_positions_draw_independently() -> None:
    num_draws, size = 20_001, 4
    drawn = TokenDraw(size, CPU).draw(torch.zeros((num_draws, size)), torch.ones(num_draws), keys_of(num_draws))
    counts = torch.bincount(drawn[1:] * size + drawn[:-1], minlength=size * size).double()
    expected = (num_draws - 1) / size**2
    assert ((counts - expected) ** 2 / expected).sum().item() < 15 + 6 * math.sqrt(30)
