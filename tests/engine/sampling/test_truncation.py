"""top_k, top_p and min_p: what stays, and that every form draws the same from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.sampling.draw import TokenDraw
from engine.sampling.params import SamplingParams
from engine.sampling.random import position_keys, stream_key
from engine.sampling.truncation import Limits, draw_top_k, draw_within, truncate
from tests.engine.sampling.reference import Floats32, kept

CPU = torch.device("cpu")


def limits_of(params: list[SamplingParams], size: int) -> Limits:
    return Limits(
        temperature=torch.tensor([one.temperature for one in params]),
        top_k=torch.tensor([one.top_k or size for one in params]),
        top_p=torch.tensor([one.top_p if one.top_p < 1 else np.inf for one in params], dtype=torch.float64),
        min_p=torch.tensor([one.min_p for one in params], dtype=torch.float64),
    )


@st.composite
def rows(draw: st.DrawFn) -> Floats32:
    """Logits with many equals or none, flat or peaked, some of them excluded."""
    size = draw(st.sampled_from([1, 2, 10, 64, 150, 400]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.standard_normal(size) * draw(st.sampled_from([0.5, 2.0, 8.0]))
    if draw(st.booleans()):
        row = np.round(row)
    row[rng.random(size) < draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))] = -np.inf
    return row.astype(np.float32)


params = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.floats(0.05, 2.0),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 50, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 1e-300, 0.05, 0.5, 0.9, 0.99]),
    min_p=st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
)


def keys_at(positions: range) -> torch.Tensor:
    return position_keys(torch.full((len(positions),), stream_key(9, 0)), torch.tensor(list(positions)))


def truncated(row: Floats32, one: SamplingParams) -> torch.Tensor:
    logits = torch.from_numpy(row.copy())[None]
    truncate(logits, limits_of([one], len(row)))
    return logits


@given(row=rows(), one=params)
def test_the_kept_tokens_are_those_of_the_plain_definition(row: Floats32, one: SamplingParams) -> None:
    ids, margin = kept(row, one)
    assume(margin > 1e-5)
    stays = truncated(row, one)[0].isfinite().nonzero().flatten().tolist()
    assert stays == sorted(token_id for token_id in ids if np.isfinite(row[token_id]))


@given(row=rows(), one=params, position=st.integers(0, 1000))
def test_a_draw_without_sorting_is_the_draw_after_sorting(row: Floats32, one: SamplingParams, position: int) -> None:
    assume(kept(row, one)[1] > 1e-5)
    draw, limits, keys = TokenDraw(len(row), CPU), limits_of([one], len(row)), keys_at(range(position, position + 1))
    expected = draw.draw(truncated(row, one), limits.temperature, keys)
    assert torch.equal(draw_within(draw, torch.from_numpy(row)[None], limits, keys, [one]), expected)


@given(row=rows(), one=params, top_k=st.integers(1, 60), position=st.integers(0, 1000))
def test_a_draw_from_few_candidates_is_the_draw_after_sorting(
    row: Floats32, one: SamplingParams, top_k: int, position: int
) -> None:
    one = SamplingParams(max_tokens=1, temperature=one.temperature, top_k=top_k, top_p=one.top_p, min_p=one.min_p)
    assume(kept(row, one)[1] > 1e-5)
    draw, limits, keys = TokenDraw(len(row), CPU), limits_of([one], len(row)), keys_at(range(position, position + 1))
    expected = draw.draw(truncated(row, one), limits.temperature, keys)
    drawn, split = draw_top_k(draw, torch.from_numpy(row)[None], limits, keys, top_k)
    assert split == [0] or torch.equal(drawn, expected)


def test_equals_at_the_border_of_top_k_are_reported_not_guessed() -> None:
    limits = limits_of([SamplingParams(max_tokens=1, top_k=2)], 5)
    draw, keys = TokenDraw(5, CPU), keys_at(range(1))
    assert draw_top_k(draw, torch.tensor([[0.0, 1.0, 2.0, 1.0, 0.0]]), limits, keys, 2)[1] == [0]
    assert draw_top_k(draw, torch.tensor([[0.0, 1.0, 2.0, 0.5, 0.0]]), limits, keys, 2)[1] == []


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (SamplingParams(max_tokens=1, top_k=2), [1, 2]),
        (SamplingParams(max_tokens=1, top_p=0.0), [2]),
        (SamplingParams(max_tokens=1, top_p=1e-9), [2]),
        (SamplingParams(max_tokens=1, min_p=1.0), [2]),
        (SamplingParams(max_tokens=1, min_p=0.3), [1, 2, 3]),
        (SamplingParams(max_tokens=1), [0, 1, 2, 3, 4]),
    ],
)
def test_equals_stand_by_rising_id(one: SamplingParams, expected: list[int]) -> None:
    row = np.array([-5.0, 1.0, 2.0, 1.0, -5.0], dtype=np.float32)
    assert truncated(row, one)[0].isfinite().nonzero().flatten().tolist() == expected


def test_top_p_counts_mass_within_top_k() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], dtype=np.float32))
    # 0.4 of all is 0.57 of the first two: enough only when top_k comes first.
    assert (
        truncated(row, SamplingParams(max_tokens=1, top_k=2, top_p=0.5))[0].isfinite().tolist() == [True] + [False] * 3
    )
    assert truncated(row, SamplingParams(max_tokens=1, top_p=0.5))[0].isfinite().tolist() == [True, True, False, False]


def test_a_flat_nucleus_of_thousands_is_drawn_from_evenly() -> None:
    size, num_draws = 8192, 400
    one = SamplingParams(max_tokens=1, top_p=0.5)
    limits = limits_of([one] * num_draws, size)
    tokens = draw_within(
        TokenDraw(size, CPU), torch.zeros((num_draws, size)), limits, keys_at(range(num_draws)), [one] * num_draws
    )
    assert tokens.max() < size / 2
    counts = torch.histc(tokens.float(), bins=8, min=0, max=size / 2)
    assert ((counts - num_draws / 8) ** 2 / (num_draws / 8)).sum() < 7 + 6 * np.sqrt(14)
