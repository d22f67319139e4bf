"""From logits to tokens: every parameter against the plain definition, alone and in mixed batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.sampling.params import SamplingParams
from engine.sampling.sampler import LaneMasks
from tests.engine.sampling import reference
from tests.engine.sampling.benches import Bench, V, logits_for, situations
from tests.engine.sampling.reference import Floats32, Situation

pytestmark = pytest.mark.usefixtures("form")


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, temperature=0.0, **params)


def one_line(**values: float) -> Floats32:
    """Logits of -1 but for `t3=5.0`: token 3 has 5."""
    line = np.full((1, V), -1.0, dtype=np.float32)
    for name, value in values.items():
        line[0, int(name[1:])] = value
    return line


def pick(now: Situation, line: Floats32) -> int:
    return int(Bench([now]).sample(line).token_ids[0])


@settings(max_examples=200)
@given(batch=st.lists(situations, min_size=1, max_size=5), seed=st.integers(0, 2**32), rounded=st.booleans())
def test_any_batch_chooses_what_the_plain_definition_says(batch: list[Situation], seed: int, rounded: bool) -> None:
    logits = logits_for(seed, len(batch), rounded=rounded)
    choices = [reference.choose(line, now) for line, now in zip(logits, batch, strict=True)]
    assume(all(choice.margin > 1e-5 for choice in choices))
    found = Bench(batch).sample(logits)
    assert found.token_ids.tolist() == [choice.token_id for choice in choices]
    assert (found.logprobs is None) == all(now.params.logprobs is None for now in batch)


@settings(max_examples=60)
@given(batch=st.lists(situations, min_size=2, max_size=5), seed=st.integers(0, 2**32), data=st.data())
def test_a_lane_alone_chooses_as_in_any_batch(batch: list[Situation], seed: int, data: st.DataObject) -> None:
    logits = logits_for(seed, len(batch))
    order = data.draw(st.permutations(range(len(batch))))
    together = Bench(batch).sample(logits[list(order)], order).token_ids.tolist()
    alone = [int(Bench([batch[row]]).sample(logits[row : row + 1]).token_ids[0]) for row in order]
    assert together == alone


@settings(max_examples=40)
@given(
    batch=st.lists(situations, min_size=1, max_size=3), seed=st.integers(0, 2**32), interrupted_after=st.integers(0, 5)
)
def test_a_sequence_assigned_again_after_preemption_goes_on_undisturbed(
    batch: list[Situation], seed: int, interrupted_after: int
) -> None:
    lines = [logits_for(seed + step, len(batch)) for step in range(6)]
    again = [replace(now, output_ids=list(now.output_ids)) for now in batch]
    undisturbed = Bench(batch)
    expected = [undisturbed.step(line) for line in lines]

    disturbed = Bench(again)
    found = []
    for step, line in enumerate(lines):
        if step == interrupted_after:
            for row in range(len(again)):
                disturbed.state.release(row)
            for row in reversed(range(len(again))):
                disturbed.assign(row)
        found.append(disturbed.step(line))
    assert found == expected


@settings(max_examples=40)
@given(first=situations, second=situations, seed=st.integers(0, 2**32))
def test_a_row_keeps_nothing_of_its_last_sequence(first: Situation, second: Situation, seed: int) -> None:
    lines = [logits_for(seed + step, 1) for step in range(4)]
    fresh = Bench([replace(second, output_ids=list(second.output_ids))])
    expected = [fresh.step(line) for line in lines]

    bench = Bench([first])
    for line in lines:
        bench.step(line)
    bench.state.release(0)
    bench.situations = [second]
    bench.assign(0)
    assert [bench.step(line) for line in lines] == expected


@dataclass
class Case:
    """A greedy choice that one parameter turns."""

    params: SamplingParams
    line: Floats32
    expected: int
    output_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = (2,)


CASES = {
    "ties go to the lowest id": Case(greedy(), one_line(t7=5, t4=5, t90=5), 4),
    "a tiny temperature is greedy": Case(SamplingParams(max_tokens=1, temperature=1e-9), one_line(t7=5, t4=5), 4),
    "top_k 1 is greedy": Case(SamplingParams(max_tokens=1, top_k=1), one_line(t7=5, t4=5), 4),
    "top_p 0 is greedy": Case(SamplingParams(max_tokens=1, top_p=0.0), one_line(t7=5, t4=5), 4),
    "repetition divides what is positive": Case(greedy(repetition_penalty=2.0), one_line(t0=5, t4=3), 4),
    "repetition multiplies what is negative": Case(greedy(repetition_penalty=2.0), one_line(t0=-0.3) - 0.5, 1),
    "presence counts once": Case(greedy(presence_penalty=1.5), one_line(t3=5, t4=4), 3, (3, 3, 3)[:0]),
    "presence looks at the output": Case(greedy(presence_penalty=1.5), one_line(t3=5, t4=4), 4, (3,)),
    "presence does not add up": Case(greedy(presence_penalty=0.9), one_line(t3=5, t4=4), 3, (3, 3, 3)),
    "frequency adds up": Case(greedy(frequency_penalty=0.4), one_line(t3=5, t4=4), 4, (3, 3, 3)),
    "presence leaves the prompt alone": Case(greedy(presence_penalty=2.0), one_line(t0=5, t4=4), 0),
    "a bias lifts": Case(greedy(logit_bias={9: 100.0}), one_line(t3=5), 9),
    "a bias sinks": Case(greedy(logit_bias={3: -100.0}), one_line(t3=5, t4=4), 4),
    "a bad word of one token": Case(greedy(bad_words=((3,),)), one_line(t3=5, t4=4), 4),
    "a bad word that is complete but for its end": Case(
        greedy(bad_words=((6, 7, 3),)), one_line(t3=5, t4=4), 4, (6, 7)
    ),
    "a bad word that only starts": Case(greedy(bad_words=((6, 7, 3),)), one_line(t3=5, t4=4), 3, (7, 6)),
    "a bad word longer than the output": Case(greedy(bad_words=((0, 7, 3),)), one_line(t3=5, t4=4), 3, (7,)),
    "eos before min_tokens": Case(greedy(min_tokens=2), one_line(t2=5, t4=4), 4, (1,)),
    "eos at min_tokens": Case(greedy(min_tokens=2), one_line(t2=5, t4=4), 2, (1, 1)),
    "an ignored eos before min_tokens": Case(greedy(min_tokens=2, ignore_eos=True), one_line(t2=5, t4=4), 2, (1,)),
    "a stop id before min_tokens": Case(
        greedy(min_tokens=2, ignore_eos=True, stop_token_ids=(3,)), one_line(t3=5, t4=4), 4, (1,)
    ),
    "only allowed ids": Case(greedy(allowed_token_ids=(8, 40)), one_line(t3=5, t40=1), 40),
    "bias cannot lift what is banned": Case(greedy(bad_words=((3,),), logit_bias={3: 100.0}), one_line(t4=4), 4),
    "all allowed ids banned": Case(greedy(allowed_token_ids=(8, 6), bad_words=((8,), (6,))), one_line(t3=5), 6),
    "everything banned": Case(greedy(bad_words=tuple((i,) for i in range(V))), one_line(t3=5), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_one_parameter_turns_a_choice(name: str) -> None:
    case = CASES[name]
    now = Situation(params=case.params, output_ids=list(case.output_ids), eos_token_ids=case.eos_token_ids)
    assert pick(now, case.line) == case.expected
    assert reference.choose(case.line[0], now).token_id == case.expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("limit", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"top_k": 5, "top_p": 0.5}])
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_broken_logits_never_crash_and_choose_a_valid_id(
    temperature: float, limit: dict[str, Any], broken: float
) -> None:
    params = SamplingParams(max_tokens=9, temperature=temperature, repetition_penalty=1.2, logprobs=2, **limit)
    for share in (0.5, 1.0):
        logits = logits_for(0, 2)
        logits[0, : int(V * share)] = broken
        found = Bench([Situation(params=params), Situation(params=params)]).sample(logits)
        assert all(0 <= token < V for token in found.token_ids.tolist())
        assert found.logprobs is not None
        assert found.logprobs.chosen.isfinite().all()
        assert found.logprobs.top_logprobs.isfinite().all()


def test_nan_counts_as_impossible() -> None:
    line = one_line(t3=5, t4=4)
    line[0, 3] = np.nan
    assert pick(Situation(params=greedy()), line) == 4
    line[0] = np.nan
    assert pick(Situation(params=greedy()), line) == 0
    assert pick(Situation(params=SamplingParams(max_tokens=1, top_p=0.9)), line) == 0


def test_an_allowed_token_is_chosen_even_where_the_model_gives_nothing() -> None:
    line = np.full((1, V), -np.inf, dtype=np.float32)
    line[0, 3] = 1.0
    for params in (greedy(), SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, top_k=9)):
        assert pick(Situation(params=params, allowed_by_mask=[77]), line) == 77


@pytest.mark.parametrize("penalty", [5e-324, 1e-60, 1e60, 1.7e308])
def test_a_repetition_penalty_beyond_float32_still_chooses_what_it_means(penalty: float) -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=9, temperature=temperature, repetition_penalty=penalty)
        params.validate(V)
        now = Situation(params=params, prompt_ids=[7], output_ids=[7, 7])
        assert (pick(now, one_line(t7=5, t4=40)) == 7) == (penalty < 1)


def test_a_token_mask_and_allowed_ids_hold_together() -> None:
    now = Situation(params=greedy(allowed_token_ids=(3, 4, 149)), allowed_by_mask=[5, 4, 149])
    assert pick(now, one_line(t3=9, t5=9, t149=2)) == 149


def test_a_token_mask_holds_for_one_step_only() -> None:
    bench = Bench([Situation(params=greedy(), allowed_by_mask=[9])])
    assert bench.sample(one_line(t3=5)).token_ids.tolist() == [9]
    bench.situations[0].allowed_by_mask = None
    assert bench.sample(one_line(t3=5)).token_ids.tolist() == [3]


def test_an_empty_mask_still_gives_a_valid_id() -> None:
    for params in (greedy(), SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, top_p=0.5)):
        assert pick(Situation(params=params, allowed_by_mask=[]), one_line(t3=5)) == 0


def test_output_not_yet_seen_by_the_host_is_penalized_and_matched() -> None:
    bench = Bench(
        [
            Situation(params=greedy(frequency_penalty=1.0)),
            Situation(params=greedy(bad_words=((3, 3),))),
            Situation(params=greedy()),
        ]
    )
    line = np.repeat(one_line(t3=5, t4=4.5, t5=4.2), 3, axis=0)
    assert [bench.step(line) for _ in range(4)] == [[3, 3, 3], [4, 4, 3], [5, 3, 3], [3, 4, 3]]


def test_the_newest_tokens_stay_on_the_device_for_the_next_step() -> None:
    bench = Bench([Situation(params=greedy(), prompt_ids=[n]) for n in (10, 11, 12)])
    lines = np.concatenate((one_line(t3=5), one_line(t4=5)))
    bench.sample(lines, [2, 0])
    assert bench.state.last_tokens.tolist() == [4, 11, 3]


def test_min_tokens_ends_while_the_batch_stays_the_same() -> None:
    bench = Bench([Situation(params=greedy(min_tokens=2), eos_token_ids=(2,))])
    assert [bench.step(one_line(t2=5, t4=4))[0] for _ in range(4)] == [4, 4, 2, 2]


def test_a_long_output_outgrows_its_first_memory() -> None:
    bench = Bench([Situation(params=greedy(presence_penalty=2.0, bad_words=((3, 3),)))], vocab_size=V)
    for step in range(600):
        line = np.full((1, V), -50.0, dtype=np.float32)
        line[0, step % 5] = 50.0
        assert bench.step(line) == [step % 5]
    slot = bench.state[0].history_slot
    assert bench.state.history.rows[slot, :600].tolist() == [step % 5 for step in range(600)]


def test_seeds_streams_and_positions_draw_differently_and_repeatably() -> None:
    flat = np.zeros((1, V), dtype=np.float32)

    def draws(seed: int, stream: int) -> list[int]:
        bench = Bench([Situation(params=SamplingParams(max_tokens=100), seed=seed, stream=stream)])
        return [bench.step(flat)[0] for _ in range(12)]

    runs = [draws(seed, stream) for seed in (0, 1, -1, -(2**63)) for stream in (0, 1)]
    assert len({tuple(run) for run in runs}) == len(runs)
    assert all(len(set(run)) > 6 for run in runs)
    assert draws(-1, 1) == runs[5]


def test_dropping_unlikely_tokens_does_not_change_a_likely_draw() -> None:
    logits = logits_for(4, 1) * 2
    for seed in range(30):
        plain = pick(Situation(params=SamplingParams(max_tokens=1), seed=seed), logits)
        rank = int((logits[0] > logits[0, plain]).sum())
        few = SamplingParams(max_tokens=1, top_k=rank + 2, min_p=1e-6)
        assert pick(Situation(params=few, seed=seed), logits) == plain


def test_logprobs_are_the_models_own_and_only_of_lanes_that_asked() -> None:
    logits = logits_for(1, 3)
    own = torch.from_numpy(logits).log_softmax(dim=-1)
    biased = Situation(params=SamplingParams(max_tokens=1, temperature=0.5, logit_bias={9: 100.0}, logprobs=2))
    found = Bench([Situation(params=greedy()), biased, Situation(params=greedy(logprobs=5))]).sample(logits)
    assert found.token_ids[1] == 9
    assert found.logprobs is not None
    assert found.logprobs.top_ids.shape == found.logprobs.top_logprobs.shape == (3, 5)
    for lane in (1, 2):
        assert found.logprobs.chosen[lane].item() == pytest.approx(own[lane, found.token_ids[lane]].item(), abs=1e-5)
        assert found.logprobs.top_ids[lane].tolist() == own[lane].topk(5).indices.tolist()
        assert found.logprobs.rank[lane] == 1 + (own[lane] > own[lane, found.token_ids[lane]]).sum()
    assert found.logprobs.rank[0] == 0


def test_a_mask_does_not_reach_the_reported_logprobs() -> None:
    logits = logits_for(2, 1)
    found = Bench([Situation(params=greedy(logprobs=1), allowed_by_mask=[11])]).sample(logits)
    assert found.logprobs is not None
    assert found.logprobs.top_ids.tolist() == [[int(logits[0].argmax())]]
    own = torch.from_numpy(logits).log_softmax(dim=-1)[0, 11].item()
    assert found.logprobs.chosen.item() == pytest.approx(own, abs=1e-5)


@pytest.mark.parametrize("vocab_size", [1, 2, 31, 32, 33, 64, 1000])
def test_any_vocabulary_size_works(vocab_size: int) -> None:
    for params in (
        greedy(logprobs=3),
        SamplingParams(max_tokens=1, top_k=2000, top_p=0.9),
        SamplingParams(max_tokens=1, min_p=0.2),
        SamplingParams(max_tokens=1, allowed_token_ids=(vocab_size - 1,)),
    ):
        bench = Bench([Situation(params=params)], vocab_size=vocab_size)
        logits = np.random.default_rng(0).standard_normal((1, vocab_size)).astype(np.float32)
        token = int(bench.sample(logits).token_ids[0])
        assert token == reference.choose(logits[0], bench.situations[0]).token_id


def test_no_lanes_give_no_tokens() -> None:
    bench = Bench([Situation(params=greedy())])
    assert bench.sample(np.empty((0, V), dtype=np.float32), []).token_ids.shape == (0,)


def test_logits_that_are_a_view_are_sampled_too() -> None:
    bench = Bench([Situation(params=greedy(bad_words=((3,),)))])
    wide = torch.full((1, 2 * V), -1.0)
    wide[0, 6], wide[0, 8] = 5.0, 4.0
    assert bench.sampler.sample(wide[:, ::2], [bench.lane(0)]).token_ids.tolist() == [4]


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.zeros((1, V), dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros((1, V - 1)), "149"),
        (torch.zeros((2, V)), r"\[2, 150\]"),
    ],
)
def test_logits_that_do_not_fit_are_refused(logits: torch.Tensor, message: str) -> None:
    bench = Bench([Situation(params=greedy())])
    with pytest.raises(ValueError, match=message):
        bench.sampler.sample(logits, [bench.lane(0)])


def test_a_mask_of_the_wrong_size_is_refused_before_any_work() -> None:
    bench = Bench([Situation(params=greedy(presence_penalty=1.0))])
    masks = LaneMasks([0], np.zeros((1, 4), dtype=np.int32))
    with pytest.raises(ValueError, match="masks"):
        bench.sampler.sample(torch.zeros((1, V)), [bench.lane(0)], masks)
    assert bench.state.counts.rows.count_nonzero() == 0
