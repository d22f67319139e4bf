"""Log-probabilities of the model itself: finite, ranked, the lower id first among equals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling import logprobs
from engine.sampling.logprobs import LEAST_LOGPROB, gather_logprobs


@given(
    size=st.sampled_from([1, 2, 9, 130]),
    num_rows=st.integers(1, 4),
    num_top=st.integers(0, 20),
    seed=st.integers(0, 2**32),
    rounded=st.booleans(),
)
def test_rows_agree_with_a_full_sort_of_log_softmax(
    size: int, num_rows: int, num_top: int, seed: int, rounded: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((num_rows, size)) * 4).astype(np.float32)
    logits = np.round(logits) if rounded else logits
    targets = rng.integers(0, size, num_rows)
    found = gather_logprobs(torch.from_numpy(logits.copy()), torch.from_numpy(targets), num_top)
    wide = logits.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    order = np.argsort(-wide, axis=1, kind="stable")
    assert found.top_ids.tolist() == order[:, :num_top].tolist()
    np.testing.assert_allclose(found.top_logprobs, np.take_along_axis(expected, order, 1)[:, :num_top], atol=1e-5)
    np.testing.assert_allclose(found.chosen, expected[np.arange(num_rows), targets], atol=1e-5)
    ranks = [list(order[row]).index(target) + 1 for row, target in enumerate(targets)]
    assert found.rank.tolist() == ranks
    on_device, aimed = torch.from_numpy(logits), torch.from_numpy(targets)
    assert logprobs._rank_by_counting(on_device, aimed, on_device.gather(1, aimed[:, None])).tolist() == ranks


@pytest.mark.parametrize(
    "row", [[-math.inf] * 4, [math.nan] * 4, [0.0, -math.inf, math.nan, -1e30], [math.inf, 0.0, 1.0, 2.0]]
)
def test_broken_logits_give_finite_numbers(row: list[float]) -> None:
    for target in range(4):
        found = gather_logprobs(torch.tensor([row]), torch.tensor([target]), 4)
        assert found.chosen.isfinite().all()
        assert found.top_logprobs.isfinite().all()
        assert found.chosen >= LEAST_LOGPROB
        assert sorted(found.top_ids[0].tolist()) == [0, 1, 2, 3]


def test_an_impossible_token_has_the_least_logprob_and_the_last_rank() -> None:
    found = gather_logprobs(torch.tensor([[0.0, -math.inf, 1.0]]), torch.tensor([1]), 3)
    assert found.chosen.tolist() == [LEAST_LOGPROB]
    assert found.rank.tolist() == [3]
    assert found.top_logprobs[0, -1] == LEAST_LOGPROB


def test_many_rows_are_gathered_in_parts_that_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn((10, 30), generator=torch.Generator().manual_seed(0))
    targets = torch.arange(10)
    whole = gather_logprobs(logits, targets, 5)
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", 90)
    parts = gather_logprobs(logits, targets, 5)
    assert torch.equal(whole.top_ids, parts.top_ids)
    assert torch.equal(whole.rank, parts.rank)
    assert torch.allclose(whole.chosen, parts.chosen)
    assert torch.allclose(whole.top_logprobs, parts.top_logprobs)


def test_no_rows_give_empty_answers() -> None:
    found = gather_logprobs(torch.empty((0, 8)), torch.empty(0, dtype=torch.int64), 3)
    assert found.chosen.shape == (0,)
    assert found.top_ids.shape == (0, 3)
