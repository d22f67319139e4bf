"""Tokens chosen in native code are those that torch chooses, in every form this machine has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.native.library import native_module
from engine.native.sampling import LANE, NO_MASKS, Floats, Lanes, Longs, Memory, NativeSampling
from engine.sampling.draw import TokenDraw, first_argmax
from engine.sampling.params import SamplingParams
from engine.sampling.random import position_keys, stream_key
from engine.sampling.sampler import TORCH, ForcedTokens, SampleLane, Sampler
from engine.sampling.state import SamplerState
from engine.sampling.truncation import Limits, truncate
from tests.engine.sampling import reference
from tests.engine.sampling.benches import FORMS, Bench, V, logits_for, situations
from tests.engine.sampling.reference import Floats32, Situation

NATIVE_FORMS = [form for form in FORMS if form != TORCH]
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(not NATIVE_FORMS, reason="the native step is not built, or not for this processor")


def sampling(form: str, vocab_size: int, num_threads: int = 0) -> NativeSampling:
    module = native_module()
    assert module is not None
    return NativeSampling(module, vocab_size, form, module.new_team(num_threads) if num_threads else None)


def new_memory(num_rows: int) -> Memory:
    return Memory(np.zeros(num_rows, np.int64), np.empty(0, np.int32), np.empty((0, 1), np.int64))


def lanes_of(params: Sequence[SamplingParams], vocab_size: int, *, first_position: int = 0) -> Lanes:
    lanes = np.zeros(len(params), LANE)
    lanes["stream_key"] = stream_key(5, 0)
    lanes["position"] = first_position + np.arange(len(params))
    lanes["row"] = np.arange(len(params))
    lanes["top_k"] = [min(one.top_k or vocab_size, vocab_size) for one in params]
    lanes["top_p"] = [one.top_p if one.top_p < 1 else math.inf for one in params]
    lanes["min_p"] = [one.min_p for one in params]
    lanes["temperature"] = [one.temperature for one in params]
    lanes["is_greedy"] = [one.is_greedy for one in params]
    lanes["counts_slot"] = lanes["history_slot"] = lanes["mask"] = -1
    lanes["repetition"] = 1.0
    return lanes


def chosen(native: NativeSampling, logits: Floats, lanes: Lanes) -> Longs:
    return native.choose_tokens(logits.copy(), lanes, NO_MASKS, new_memory(len(lanes)))


def by_torch(logits: Floats, lanes: Lanes) -> Longs:
    """The plain method: sort, exclude, then score every token."""
    rows = torch.from_numpy(np.where(np.isnan(logits), np.float32(-np.inf), logits))
    greedy = first_argmax(rows)
    limits = Limits(*(torch.from_numpy(lanes[name].copy()) for name in ("temperature", "top_k", "top_p", "min_p")))
    truncate(rows, limits)
    keys = position_keys(*(torch.from_numpy(lanes[name].copy()) for name in ("stream_key", "position")))
    drawn = TokenDraw(rows.shape[1], CPU).draw(rows, limits.temperature.clamp_min(0.01), keys)
    tokens: Longs = np.where(lanes["is_greedy"], greedy.numpy(), drawn.numpy())
    return tokens


@st.composite
def broken_logits(draw: st.DrawFn, num_lanes: int) -> Floats32:
    """Logits with equals or none, some of them excluded, not a number or infinite."""
    seed = draw(st.integers(0, 2**32))
    logits = logits_for(seed, num_lanes, rounded=draw(st.booleans()))
    rng = np.random.default_rng(seed)
    for value in draw(st.sets(st.sampled_from([-np.inf, np.nan, np.inf]))):
        logits[rng.random(logits.shape) < draw(st.sampled_from([0.01, 0.5, 0.99]))] = value
    return logits


@pytest.mark.parametrize("form", NATIVE_FORMS)
@settings(max_examples=100)
@given(batch=st.lists(situations, min_size=1, max_size=4), data=st.data())
def test_any_batch_chooses_and_remembers_what_torch_does(
    form: str, batch: list[Situation], data: st.DataObject
) -> None:
    benches = [
        Bench([replace(now, output_ids=list(now.output_ids)) for now in batch], form=one) for one in (TORCH, form)
    ]
    for _ in range(3):
        logits = data.draw(broken_logits(len(batch)))
        sane = np.where(logits == np.inf, np.float32(1e9), logits)
        now = benches[0].situations
        assume(all(reference.choose(line, one).margin > 1e-5 for line, one in zip(sane, now, strict=True)))
        expected, found = (bench.sample(logits) for bench in benches)
        assert found.token_ids.tolist() == expected.token_ids.tolist()
        for bench in benches:
            for one, token in zip(bench.situations, expected.token_ids.tolist(), strict=True):
                one.output_ids.append(token)
        assert_remembered_alike(*(bench.state for bench in benches))
        assert (found.logprobs is None) == (expected.logprobs is None)
        if found.logprobs is not None and expected.logprobs is not None:
            assert torch.equal(found.logprobs.top_ids, expected.logprobs.top_ids)
            assert torch.equal(found.logprobs.rank, expected.logprobs.rank)


def assert_remembered_alike(expected: SamplerState, found: SamplerState) -> None:
    assert torch.equal(found.last_tokens, expected.last_tokens)
    assert torch.equal(found.counts.rows, expected.counts.rows)
    assert torch.equal(found.history.rows, expected.history.rows)


@st.composite
def rows(draw: st.DrawFn) -> Floats32:
    """One row of logits with many equals or none, flat or peaked, some of them excluded."""
    size = draw(st.sampled_from([1, 2, 15, 16, 17, 63, 64, 65, 500, 3000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    row = rng.standard_normal(size) * draw(st.sampled_from([0.0, 0.5, 2.0, 8.0]))
    if draw(st.booleans()):
        row = np.round(row)
    row[rng.random(size) < draw(st.sampled_from([0.0, 0.0, 0.5, 1.0]))] = draw(st.sampled_from([-np.inf, np.nan]))
    return row.astype(np.float32)


draws = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.floats(0.0625, 2.0, width=32),
    top_k=st.sampled_from([0, 0, 1, 2, 5, 31, 32, 33, 100, 1000, 2900]),
    top_p=st.sampled_from([1.0, 1.0, 1e-300, 0.05, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 1e-30, 0.01, 0.3, 1.0]),
)


@pytest.mark.parametrize("form", NATIVE_FORMS)
@settings(max_examples=250)
@given(row=rows(), one=draws, position=st.integers(0, 2**40))
def test_a_draw_without_sorting_is_the_draw_after_sorting(
    form: str, row: Floats32, one: SamplingParams, position: int
) -> None:
    sane = np.where(np.isnan(row), np.float32(-np.inf), row)
    assume(reference.kept(sane, one)[1] > 1e-5)
    lanes = lanes_of([one], len(row), first_position=position)
    assert chosen(sampling(form, len(row)), row[None], lanes).tolist() == by_torch(row[None], lanes).tolist()


@pytest.mark.parametrize("form", NATIVE_FORMS)
@pytest.mark.parametrize("top_k", [1, 2, 20, 21, 700, 1299, 1300])
def test_equals_at_the_border_of_top_k_are_kept_by_rising_id(form: str, top_k: int) -> None:
    row = np.where(np.arange(1300) % 65 == 64, 0.0, -0.0).astype(np.float32)  # equals, whatever their sign
    params = [SamplingParams(max_tokens=1, top_k=top_k)] * 300
    tokens = chosen(sampling(form, 1300), np.repeat(row[None], 300, axis=0), lanes_of(params, 1300))
    assert tokens.max() < top_k
    assert len(set(tokens.tolist())) > min(top_k, 250) / 3


REAL = [
    SamplingParams(max_tokens=1, temperature=0.0),
    SamplingParams(max_tokens=1, temperature=0.8),
    SamplingParams(max_tokens=1, temperature=2.0, top_p=0.99),
    SamplingParams(max_tokens=1, top_k=50, top_p=0.9),
    SamplingParams(max_tokens=1, top_k=5000),
    SamplingParams(max_tokens=1, temperature=0.3, min_p=0.05),
    SamplingParams(max_tokens=1, top_k=2000, top_p=0.5, min_p=0.001),
]


@pytest.mark.parametrize("vocab_size", [49_152, 200_003])
def test_forms_teams_and_torch_choose_alike_over_a_real_vocabularys_size(vocab_size: int) -> None:
    logits = (np.random.default_rng(vocab_size).standard_normal((14, vocab_size)) * 3.5).astype(np.float32)
    lanes = lanes_of(REAL * 2, vocab_size)
    expected = by_torch(logits, lanes).tolist()
    for form in NATIVE_FORMS:
        for num_threads in (0, 1, 3):
            native = sampling(form, vocab_size, num_threads)
            assert chosen(native, logits, lanes).tolist() == expected
        lone = lanes.copy()
        lone["row"] = 0
        alone = [int(chosen(native, logits[i : i + 1], lone[i : i + 1])[0]) for i in range(14)]
        assert alone == expected


@pytest.mark.parametrize("form", NATIVE_FORMS)
def test_a_long_row_is_looked_through_in_parts_that_do_not_matter(form: str) -> None:
    size = 3 * 2**16 + 5
    greedy, draw = REAL[:2]
    lanes = lanes_of([greedy, greedy, draw, draw], size)
    logits = np.full((4, size), -np.inf, np.float32)
    logits[0, [70_000, 70_001, size - 1]] = 7.0
    logits[1, size - 1] = -3.0
    logits[2, size - 1] = -3.0
    assert chosen(sampling(form, size, 2), logits, lanes).tolist() == [70_000, size - 1, size - 1, 0]


@pytest.mark.parametrize("form", NATIVE_FORMS)
def test_an_infinite_logit_counts_as_a_large_number_in_every_part_of_a_row(form: str) -> None:
    size = 2**16 + 100
    lanes = lanes_of(REAL, size)
    logits = np.zeros((len(REAL), size), np.float32)
    logits[:, 9] = np.inf
    logits[:, 2**16 + 7] = 2e9  # larger than what infinity counts as
    assert chosen(sampling(form, size), logits, lanes).tolist() == [2**16 + 7] * len(REAL)


@pytest.mark.parametrize("form", NATIVE_FORMS)
@pytest.mark.parametrize(
    "one",
    [
        SamplingParams(max_tokens=1, temperature=0.8),
        SamplingParams(max_tokens=1, temperature=0.8, top_k=20),
        SamplingParams(max_tokens=1, temperature=0.8, top_p=0.7),
        SamplingParams(max_tokens=1, temperature=0.8, min_p=0.2),
        SamplingParams(max_tokens=1, temperature=1.5, top_k=30, top_p=0.8, min_p=0.1),
    ],
)
def test_tokens_come_as_often_as_softmax_of_what_is_kept_says(form: str, one: SamplingParams) -> None:
    num_draws, size = 20_000, 50
    row = np.random.default_rng(3).standard_normal(size).astype(np.float32)
    ids, _ = reference.kept(row, one)
    ratio = np.exp(row[ids].astype(np.float64) / one.temperature)
    expected = ratio / ratio.sum() * num_draws
    tokens = chosen(sampling(form, size, 2), np.repeat(row[None], num_draws, axis=0), lanes_of([one] * num_draws, size))
    counts = np.bincount(tokens, minlength=size)
    assert counts.sum() == counts[ids].sum() == num_draws
    chi_square = ((counts[ids] - expected) ** 2 / expected).sum()
    assert chi_square < (len(ids) - 1) + 6 * math.sqrt(2 * (len(ids) - 1))


@pytest.mark.parametrize("form", NATIVE_FORMS)
@pytest.mark.parametrize("vocab_size", [31, 150, 5000])
def test_masks_exclude_in_place_all_but_their_tokens(form: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = rng.standard_normal((3, vocab_size)).astype(np.float32)
    logits[:, rng.integers(0, vocab_size, 20)] = -np.inf
    logits[:, rng.integers(0, vocab_size, 20)] = np.nan
    bits = rng.random((2, -(-vocab_size // 32) * 32)) < 0.5
    masks = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    lanes = lanes_of([REAL[0], REAL[1], REAL[1]], vocab_size)
    lanes["mask"] = [1, -1, 0]
    edited = logits.copy()
    sampling(form, vocab_size).choose_tokens(edited, lanes, masks, new_memory(3))
    for lane, mask in ((0, 1), (2, 0)):
        inside = bits[mask, :vocab_size]
        assert (edited[lane, ~inside] == -np.inf).all()
        clamped = np.maximum(np.nan_to_num(logits[lane], nan=-np.inf, neginf=-np.inf), np.float32(-1e9))
        np.testing.assert_array_equal(edited[lane, inside], clamped[inside])
    np.testing.assert_array_equal(edited[1], logits[1])


def test_a_sampler_of_another_form_chooses_the_same_from_the_same_seed() -> None:
    state = SamplerState(num_rows=1, vocab_size=V, device=CPU)
    state.assign(
        0,
        params=SamplingParams(max_tokens=99, top_p=0.9),
        seed=11,
        stream=0,
        prompt_ids=[1],
        output_ids=[],
        eos_token_ids=[],
    )
    logits = torch.from_numpy(logits_for(8, 1))
    runs = []
    for form in FORMS:
        sampler = Sampler(state, form=form)
        steps = [[SampleLane(row=0, position=1 + step, num_output=step)] for step in range(20)]
        runs.append([int(sampler.sample(logits.clone(), lanes).token_ids[0]) for lanes in steps])
    assert all(run == runs[0] for run in runs)
    assert len(set(runs[0])) > 5


@pytest.mark.parametrize("form", FORMS)
def test_forced_tokens_are_remembered_whatever_the_logits_are(form: str) -> None:
    penalized = SamplingParams(max_tokens=9, temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.5)
    plain = SamplingParams(max_tokens=9, temperature=1.0)
    batch = [Situation(params=one, seed=seed, prompt_ids=[3, 5]) for seed, one in enumerate((penalized, plain, plain))]
    bench, alone = Bench(batch, form=form), Bench(batch[2:], form=form)
    logits = logits_for(4, 3)
    logits[0], logits[1] = np.nan, -np.inf
    wanted = alone.sample(logits[2:]).token_ids.tolist()
    forced = ForcedTokens(torch.tensor([1, 0]), torch.tensor([-1, 7]))
    lanes = [bench.lane(row) for row in range(3)]
    found = bench.sampler.sample(torch.from_numpy(logits), lanes, None, forced).token_ids.tolist()
    assert found == [7, -1, *wanted]
    assert bench.state.last_tokens.tolist() == [7, 0, *wanted]
    slots = bench.state[0]
    assert bench.state.counts.rows[slots.counts_slot, 7] == 2
    assert bench.state.history.rows[slots.history_slot, slots.history_base] == 7


@pytest.mark.parametrize("form", NATIVE_FORMS)
def test_a_given_token_that_is_no_token_id_is_refused(form: str) -> None:
    lanes = lanes_of([SamplingParams(max_tokens=1, temperature=1.0)], 40)
    memory = new_memory(1)
    with pytest.raises(ValueError, match="given"):
        sampling(form, 40).choose_tokens(np.ones((1, 40), np.float32), lanes, NO_MASKS, memory, np.array([40]))
    assert memory.last_tokens.tolist() == [0]


@pytest.mark.parametrize("form", FORMS)
def test_small_differences_of_huge_logits_decide_what_is_kept(form: str) -> None:
    params = SamplingParams(max_tokens=9, temperature=0.8, top_p=0.4, logit_bias={0: 33.0, 1: 33.0})
    batch = [Situation(params=params, seed=seed, prompt_ids=[0]) for seed in range(12)]
    logits = np.full((len(batch), V), np.inf, np.float32)
    assert Bench(batch, form=form).sample(logits).token_ids.tolist() == [0] * len(batch)
