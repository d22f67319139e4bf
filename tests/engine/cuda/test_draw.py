"""Kernels draw the tokens that torch draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cuda.kernels.draw import PLAIN, DrawLanes, launch_draw
from tests.engine.cuda.draw_benches import WIDE, DrawBench, V, logits_like, params

PLAIN_BATCH = [params(temperature=t) for t in (0.0, 0.01, 0.5, 1.0, 2.0)] + [params(top_k=1), params(top_p=0.0)]


def test_the_likeliest_tokens_and_draws_are_those_of_torch(device: torch.device) -> None:
    for seed in range(3):
        bench = DrawBench(PLAIN_BATCH, device, seed=-seed)
        logits = logits_like(seed, len(PLAIN_BATCH), spread=10.0**seed / 5)
        assert bench.drawn(logits) == bench.expected(logits)
        assert torch.equal(bench.state.last_tokens.cpu(), bench.reference.last_tokens)


def test_of_equal_tokens_the_first_comes_and_the_noise_decides_among_equal_logits(device: torch.device) -> None:
    bench = DrawBench(PLAIN_BATCH, device)
    logits = logits_like(1, len(PLAIN_BATCH), levels=1)
    assert bench.drawn(logits) == bench.expected(logits)


@pytest.mark.parametrize("value", [-1e9, 0.0, 3e38, math.inf, -math.inf, math.nan])
def test_rows_of_one_value_choose_as_torch_does(device: torch.device, value: float) -> None:
    # Noise vanishes beside the greatest values: every token of every chunk is as good, and float64 has to say so.
    bench = DrawBench(PLAIN_BATCH, device)
    logits = np.full((len(PLAIN_BATCH), V), value, np.float32)
    assert bench.drawn(logits) == bench.expected(logits)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([0.01, 3.0, 1e4]), share=st.sampled_from([0.0, 0.3, 0.9]))
def test_broken_logits_choose_as_torch_does(device: torch.device, seed: int, spread: float, share: float) -> None:
    rng = np.random.default_rng(seed)
    logits = logits_like(seed, len(PLAIN_BATCH), spread=spread)
    broken = rng.choice([np.nan, np.inf, -np.inf, -1e9], logits.shape, p=[0.3, 0.01, 0.59, 0.1])
    logits = np.where(rng.random(logits.shape) < share, broken, logits).astype(np.float32)
    bench = DrawBench(PLAIN_BATCH, device, seed=seed, config=WIDE)
    assert bench.drawn(logits) == bench.expected(logits)


def test_tokens_whose_scores_differ_in_the_last_bits_of_float32_alone_are_told_apart(device: torch.device) -> None:
    # At this temperature scores are about 1e5, where neighbouring float32 numbers lie further apart than noise reaches.
    batch = [params(temperature=0.01)] * 4
    bench = DrawBench(batch, device)
    logits = np.full((4, V), 1000.0, np.float32)
    logits += np.random.default_rng(0).integers(0, 2, logits.shape).astype(np.float32) * np.float32(2**-14)
    assert bench.drawn(logits) == bench.expected(logits)


def test_a_row_assigned_anew_draws_with_its_new_parameters(device: torch.device) -> None:
    bench = DrawBench([params(temperature=0.0), params(temperature=1.0)], device)
    logits = logits_like(3, 2)
    assert bench.drawn(logits) == bench.expected(logits)
    bench.assign(0, params(temperature=2.0), seed=99)
    bench.assign(1, params(temperature=0.0), seed=98)
    assert bench.drawn(logits) == bench.expected(logits)


def test_sizes_that_do_not_fit_are_refused(device: torch.device) -> None:
    bench = DrawBench([params()], device)
    lanes = DrawLanes(*(torch.zeros(1, dtype=torch.int32, device=device) for _ in range(3)))
    tokens = torch.zeros(1, device=device)
    with pytest.raises(ValueError, match="contiguous float32"):
        launch_draw(
            torch.zeros(1, V + 1, device=device), bench.table, lanes, tokens, num_lanes=1, form=PLAIN, pdl=False
        )
    with pytest.raises(ValueError, match="room for 1"):
        launch_draw(torch.zeros(2, V, device=device), bench.table, lanes, tokens, num_lanes=2, form=PLAIN, pdl=False)
