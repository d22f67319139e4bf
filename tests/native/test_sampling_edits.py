"""What native code does to logits before a choice and reports after it; what it refuses to touch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.native.sampling import LANE, NO_MASKS, Memory
from engine.sampling import distribution, logprobs
from engine.sampling.params import SamplingParams
from engine.sampling.plan import make_plan
from engine.sampling.processors import apply_penalties, sanitize
from engine.sampling.state import SamplerState
from engine.sampling.torch_plan import make_torch_plan
from tests.native.test_sampling import CPU, NATIVE_FORMS, REAL, lanes_of, new_memory, sampling

pytestmark = pytest.mark.skipif(not NATIVE_FORMS, reason="the native step is not built, or not for this processor")

V = 300
penalized = st.builds(
    SamplingParams,
    max_tokens=st.just(99),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3, 1e-9]),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
)
ids = st.lists(st.integers(0, 30), max_size=60)


@pytest.mark.parametrize("form", NATIVE_FORMS)
@settings(max_examples=100)
@given(
    params=st.lists(penalized, min_size=1, max_size=3),
    prompt=ids.filter(bool),
    output=ids,
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_penalties_give_the_bits_that_torch_gives(
    form: str, params: list[SamplingParams], prompt: list[int], output: list[int], seed: int, data: st.DataObject
) -> None:
    state = SamplerState(num_rows=len(params), vocab_size=V, device=CPU)
    for place, one in enumerate(params):
        state.assign(place, params=one, seed=0, stream=0, prompt_ids=prompt, output_ids=output, eos_token_ids=())
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((len(params), V)) * 4).astype(np.float32)
    for value in data.draw(st.sets(st.sampled_from([-np.inf, np.nan, np.inf]))):
        logits[rng.random(logits.shape) < 0.1] = value
    expected = torch.from_numpy(logits.copy())
    sanitize(expected)
    plan = make_plan(state, range(len(params)))
    group = make_torch_plan(plan, state, max_candidates=0).penalties
    if group is not None:
        apply_penalties(expected, group, state, [len(output)] * len(params))
    lanes = lanes_of(params, V)
    lanes["num_output"] = len(output)
    for lane, row in enumerate(plan.lanes):
        one = row.params
        lanes[lane]["counts_slot"] = -1 if row.counts_slot is None else row.counts_slot
        lanes[lane]["history_slot"] = -1 if row.history_slot is None else row.history_slot
        lanes[lane]["history_base"] = row.history_base
        lanes[lane]["repetition"] = one.repetition_penalty
        lanes[lane]["presence"] = one.presence_penalty
        lanes[lane]["frequency"] = one.frequency_penalty
    state.history.ensure_width(200)
    memory = Memory(state.last_tokens.numpy(), state.counts.rows.numpy(), state.history.rows.numpy())
    sampling(form, V, data.draw(st.sampled_from([0, 2]))).edit_logits(logits, lanes, memory)
    np.testing.assert_array_equal(logits, expected.numpy())


@pytest.mark.parametrize("form", NATIVE_FORMS)
@settings(max_examples=150)
@given(
    size=st.sampled_from([1, 2, 9, 64, 130, 3000]),
    num_top=st.sampled_from([0, 1, 5, 20, 64, 2000]),
    num_rows=st.integers(0, 3),
    seed=st.integers(0, 2**32),
    rounded=st.booleans(),
    broken=st.sets(st.sampled_from([-np.inf, np.nan, np.inf])),
    share=st.sampled_from([0.01, 0.5, 1.0]),
)
def test_log_probabilities_ranks_and_alternatives_are_those_of_torch(
    form: str, size: int, num_top: int, num_rows: int, seed: int, rounded: bool, broken: set[float], share: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((num_rows, size)) * 4).astype(np.float32)
    logits = np.round(logits) if rounded else logits
    for value in broken:
        logits[rng.random(logits.shape) < share] = value
    targets = rng.integers(0, size, num_rows)
    expected = logprobs.gather_logprobs(torch.from_numpy(logits.copy()), torch.from_numpy(targets), num_top)
    native = sampling(form, size)
    chosen, rank, top_ids, top_logprobs = native.report_logprobs(logits, targets, min(num_top, size))
    assert rank.tolist() == expected.rank.tolist()
    assert top_ids.tolist() == expected.top_ids.tolist()
    if np.inf not in broken:  # beside a large number float32 keeps no logarithm
        np.testing.assert_allclose(chosen, expected.chosen, atol=1e-5, rtol=1e-6)
        np.testing.assert_allclose(top_logprobs, expected.top_logprobs, atol=1e-5, rtol=1e-6)


def test_log_probabilities_do_not_depend_on_form_or_team() -> None:
    logits = (np.random.default_rng(0).standard_normal((40, 20_000)) * 4).astype(np.float32)
    targets = np.arange(40)
    found = [
        sampling(form, 20_000, num_threads).report_logprobs(logits.copy(), targets, 5)
        for form in NATIVE_FORMS
        for num_threads in (0, 3)
    ]
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


@pytest.mark.parametrize("form", NATIVE_FORMS)
@settings(max_examples=150)
@given(
    size=st.sampled_from([1, 2, 9, 64, 130, 3000]),
    num_top=st.sampled_from([1, 5, 64, 2000]),
    num_rows=st.integers(1, 4),
    scale=st.sampled_from([0.1, 4.0, 20.0]),
    seed=st.integers(0, 2**32),
    broken=st.sets(st.sampled_from([-np.inf, np.nan, np.inf])),
    share=st.sampled_from([0.01, 0.5, 1.0]),
)
def test_outlines_of_rows_are_those_of_torch(
    form: str, size: int, num_top: int, num_rows: int, scale: float, seed: int, broken: set[float], share: float
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((num_rows, size)) * scale).astype(np.float32)
    for value in broken:
        logits[rng.random(logits.shape) < share] = value
    places = [place for place in range(num_rows) if rng.random() < 0.7]
    expected = distribution.outline(torch.from_numpy(logits.copy()), places, min(num_top, size))
    log_totals, entropies, top_ids, top_logprobs = sampling(form, size).outline_rows(
        logits, np.array(places, np.int64), min(num_top, size)
    )
    assert top_ids.tolist() == expected.top_ids.tolist()
    if np.inf not in broken:  # beside a large number float32 keeps no logarithm
        possible = np.isfinite(expected.log_totals)
        np.testing.assert_allclose(log_totals[possible], expected.log_totals[possible], atol=3e-5, rtol=1e-6)
        assert not log_totals[~possible].any()
        np.testing.assert_allclose(entropies, expected.entropies, atol=3e-5, rtol=3e-5)
        np.testing.assert_allclose(top_logprobs, expected.top_logprobs, atol=3e-5, rtol=1e-6)


def test_outlines_do_not_depend_on_form_team_or_neighbours() -> None:
    logits = (np.random.default_rng(0).standard_normal((40, 20_000)) * 4).astype(np.float32)
    places = np.arange(40)
    found = [
        sampling(form, 20_000, num_threads).outline_rows(logits.copy(), places, 5)
        for form in NATIVE_FORMS
        for num_threads in (0, 3)
    ]
    alone = [sampling(NATIVE_FORMS[0], 20_000).outline_rows(logits.copy(), places[[at]], 5) for at in range(40)]
    joined = [np.concatenate(parts) for parts in zip(*alone, strict=True)]
    for other in (*found[1:], joined):
        for one, same in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, same)


def test_what_cannot_be_drawn_adds_nothing_to_an_entropy() -> None:
    logits = np.array([[0.0, 0.0, -np.inf, -1e9, np.nan], [-np.inf] * 5], np.float32)
    log_totals, entropies, top_ids, _ = sampling(NATIVE_FORMS[0], 5).outline_rows(logits, np.arange(2), 3)
    np.testing.assert_allclose(entropies, [np.log(2), 0.0], atol=1e-6)
    np.testing.assert_allclose(log_totals, [np.log(2), 0.0], atol=1e-6)
    assert top_ids.tolist() == [[0, 1, 3], [0, 1, 2]]


@pytest.mark.parametrize("places", [[-1], [2], [0, 0], [1, 0], [2**62]])
def test_places_that_are_no_rows_or_do_not_rise_are_refused(places: list[int]) -> None:
    with pytest.raises(ValueError, match="place"):
        sampling(NATIVE_FORMS[0], 40).outline_rows(np.ones((2, 40), np.float32), np.array(places, np.int64), 2)


def test_an_outline_of_more_tokens_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="num_top"):
        sampling(NATIVE_FORMS[0], 40).outline_rows(np.ones((1, 40), np.float32), np.array([0]), 41)


def good_call() -> dict[str, Any]:
    """Arguments of a choice of two lanes, one of which is penalized and written down."""
    lanes = lanes_of(REAL[:2], 40)
    lanes[1]["counts_slot"], lanes[1]["history_slot"], lanes[1]["num_output"] = 0, 0, 3
    memory = Memory(np.full(2, 7, np.int64), np.zeros((1, 40), np.int32), np.ones((1, 8), np.int64))
    return {"logits": np.ones((2, 40), np.float32), "lanes": lanes, "masks": NO_MASKS, "memory": memory}


WRONG_LANES: dict[str, list[Any]] = {
    "row": [-1, 2],
    "mask": [0, -2],
    "counts_slot": [1, -2],
    "history_slot": [1, -2],
    "num_output": [-1, 8, 2**62],
    "history_base": [-1, 5, 2**63 - 1],
    "temperature": [0.0, -1.0, np.nan, np.inf],
    "top_k": [0, 41, -5],
    "top_p": [0.0, -1.0, np.nan],
    "min_p": [-0.1, 1.1, np.nan],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG_LANES for value in WRONG_LANES[name]])
def test_a_lane_out_of_range_is_refused_before_any_work(name: str, value: Any) -> None:
    native = sampling(NATIVE_FORMS[0], 40)
    call = good_call()
    call["lanes"][1][name] = value
    with pytest.raises(ValueError):
        native.choose_tokens(**call)
    assert call["memory"].last_tokens.tolist() == [7, 7]
    assert call["memory"].counts.sum() == 0
    native.choose_tokens(**good_call())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition", 0.0),
        ("repetition", np.nan),
        ("presence", np.inf),
        ("frequency", np.nan),
        ("history_slot", -1),
    ],
)
def test_penalties_that_cannot_be_applied_are_refused(name: str, value: float) -> None:
    native = sampling(NATIVE_FORMS[0], 40)
    call = good_call()
    call["lanes"][1][name] = value
    with pytest.raises(ValueError):
        native.edit_logits(call["logits"], call["lanes"], call["memory"])
    assert (call["logits"] == 1).all()


@pytest.mark.parametrize("token_id", [-1, 40, 2**40])
def test_a_history_with_what_is_no_token_id_is_refused(token_id: int) -> None:
    call = good_call()
    call["memory"].history[0, 2] = token_id
    with pytest.raises(ValueError, match="token id"):
        sampling(NATIVE_FORMS[0], 40).edit_logits(call["logits"], call["lanes"], call["memory"])


def shifted(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same numbers, one byte off their alignment."""
    raw = np.zeros(array.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(array.tobytes(), np.uint8)
    moved: np.ndarray[Any, Any] = raw[1:].view(array.dtype).reshape(array.shape)
    return moved


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logits", np.ones((1, 40), np.float32)),
        ("logits", np.ones((2, 39), np.float32)),
        ("logits", shifted(np.ones((2, 40), np.float32))),
        ("masks", np.zeros(3, np.int32)),
        ("lanes", np.zeros(100, np.uint8)),
        ("lanes", np.zeros(3, LANE)),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused_before_any_work(name: str, value: Any) -> None:
    call = good_call() | {name: value}
    with pytest.raises(ValueError):
        sampling(NATIVE_FORMS[0], 40).choose_tokens(**call)
    assert call["memory"].last_tokens.tolist() == [7, 7]


@pytest.mark.parametrize("which", ["last_tokens", "counts", "history"])
def test_memory_that_does_not_fit_is_refused(which: str) -> None:
    call = good_call()
    memory = {name: getattr(call["memory"], name) for name in ("last_tokens", "counts", "history")}
    memory[which] = memory[which].ravel()[:-1] if which != "history" else np.ones((0, 8), np.int64)
    if which == "last_tokens":
        call["lanes"][1]["row"] = 1
    with pytest.raises(ValueError):
        sampling(NATIVE_FORMS[0], 40).choose_tokens(**(call | {"memory": Memory(**memory)}))


def test_an_unknown_form_and_a_wrong_team_are_refused() -> None:
    native = sampling("sse9", 40)
    with pytest.raises(ValueError, match="sse9"):
        native.choose_tokens(**good_call())
    native = sampling(NATIVE_FORMS[0], 40)
    native._team = object()
    with pytest.raises(ValueError, match="team"):
        native.choose_tokens(**good_call())


@pytest.mark.parametrize("target", [-1, 40])
def test_a_target_that_is_no_token_id_is_refused(target: int) -> None:
    with pytest.raises(ValueError, match="target"):
        sampling(NATIVE_FORMS[0], 40).report_logprobs(np.ones((1, 40), np.float32), np.array([target]), 2)


def test_more_alternatives_than_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="num_top"):
        sampling(NATIVE_FORMS[0], 40).report_logprobs(np.ones((1, 40), np.float32), np.array([1]), 41)


def test_no_lanes_are_no_work() -> None:
    native = sampling(NATIVE_FORMS[0], 40)
    assert len(native.choose_tokens(np.ones((0, 40), np.float32), np.empty(0, LANE), NO_MASKS, new_memory(0))) == 0
