"""What is told of the distributions that tokens are drawn from, in every form."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.request import Distribution, Readout
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import SampleLane, Sampler
from engine.sampling.state import SamplerState
from tests.engine.sampling.benches import FORMS

V = 500
NUM_ROWS = 4


def told(
    form: str, logits: torch.Tensor, wanted: dict[int, Readout], *, penalized: int | None = None
) -> list[Distribution]:
    """Distributions of rows, one of which may have a bias: token 7 is banned there."""
    state = SamplerState(num_rows=NUM_ROWS, vocab_size=logits.shape[1], device=torch.device("cpu"))
    for row in range(len(logits)):
        params = SamplingParams(max_tokens=9, logit_bias={7: -100.0} if row == penalized else {})
        state.assign(row, params=params, seed=0, stream=row, prompt_ids=(1,), output_ids=(), eos_token_ids=())
    lanes = [SampleLane(row=row, position=1, num_output=0) for row in range(len(logits))]
    found = Sampler(state, form=form).describe(logits, lanes, None, wanted)
    assert list(found) == list(wanted)
    return list(found.values())


def unpacked(distribution: Distribution) -> tuple[list[int], np.ndarray]:
    return np.frombuffer(distribution.token_ids, "<i4").tolist(), np.frombuffer(distribution.logprobs, "<f4")


def some_logits(num_rows: int = NUM_ROWS, seed: int = 3) -> torch.Tensor:
    return torch.from_numpy((np.random.default_rng(seed).standard_normal((num_rows, V)) * 3).astype(np.float32))


def exact(row: torch.Tensor) -> np.ndarray:
    return row.double().log_softmax(dim=-1).numpy()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("penalized", [None, 1])
def test_rows_are_told_of_as_float64_has_them(form: str, penalized: int | None) -> None:
    logits = some_logits()
    expected = logits.clone()
    if penalized is not None:
        expected[penalized, 7] -= 100.0
    wanted = {0: Readout(5), 1: Readout(20), 3: Readout(1)}
    for (place, readout), found in zip(wanted.items(), told(form, logits, wanted, penalized=penalized), strict=True):
        logprobs = exact(expected[place])
        ids, values = unpacked(found)
        assert ids == np.argsort(-logprobs, kind="stable")[: readout.top].tolist()
        np.testing.assert_allclose(values, logprobs[ids], atol=1e-5)
        assert found.entropy == pytest.approx(-(np.exp(logprobs) * logprobs).sum(), abs=1e-4)
        assert found.omitted_mass == pytest.approx(1 - np.exp(logprobs[ids]).sum(), abs=1e-5)
    assert torch.equal(logits, some_logits())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("need_mass", [0.2, 0.9, 0.999, 1.0])
def test_as_many_tokens_are_given_as_make_up_the_mass_asked_for(form: str, need_mass: float) -> None:
    logits = some_logits()
    (found,) = told(form, logits, {2: Readout(1, need_mass)})
    logprobs = exact(logits[2])
    mass = np.exp(np.sort(logprobs)[::-1]).cumsum()
    ids, values = unpacked(found)
    assert ids == np.argsort(-logprobs, kind="stable")[: len(ids)].tolist()
    assert np.exp(values, dtype=np.float64).sum() >= need_mass - 1e-5
    if need_mass < 1.0:
        assert abs(len(ids) - (np.count_nonzero(mass < need_mass) + 1)) <= 1
    else:
        assert len(ids) >= V - 5


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_vocabulary_comes_in_the_order_of_ids(form: str) -> None:
    logits = some_logits()
    logits[1, 4], logits[1, 5] = -math.inf, math.nan
    few, whole = told(form, logits, {0: Readout(3), 1: Readout(-1)})
    assert len(unpacked(few)[0]) == 3
    ids, values = unpacked(whole)
    assert ids == list(range(V))
    assert values[4] == values[5] == -9999.0
    expected = exact(logits[1].nan_to_num(nan=-math.inf, neginf=-math.inf))
    others = np.setdiff1d(np.arange(V), [4, 5])
    np.testing.assert_allclose(values[others], expected[others], atol=1e-5)
    assert whole.omitted_mass == 0.0


@pytest.mark.parametrize("form", FORMS)
def test_what_is_impossible_is_not_given(form: str) -> None:
    logits = torch.full((2, V), -math.inf)
    logits[0, 3] = logits[0, 9] = 2.0
    some, none = told(form, logits, {0: Readout(5, 1.0), 1: Readout(5)})
    ids, values = unpacked(some)
    assert ids == [3, 9]
    np.testing.assert_allclose(values, math.log(0.5), atol=1e-6)
    assert some.omitted_mass == 0.0
    assert some.entropy == pytest.approx(math.log(2), abs=1e-5)
    assert unpacked(none)[0] == []
    assert (none.omitted_mass, none.entropy) == (0.0, 0.0)
