"""Whatever sampling parameters ask for, kernels draw the tokens that torch draws, and remember the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cuda.choice import CudaChoice
from engine.cuda.draw_table import DrawTable
from engine.cuda.kernels.draw import FULL, PLAIN, DrawLanes, launch_draw
from engine.sampling.masks import LaneMasks
from engine.sampling.params import SamplingParams
from engine.sampling.plan import make_plan
from engine.sampling.state import SamplerState
from tests.engine.cuda.amounts import some
from tests.engine.cuda.compiling import SHARED_LIMIT, compile_kernels, recorded_launches
from tests.engine.cuda.draw_benches import PROMPT, SMALL, WIDE, DrawBench, Floats, V, logits_like, params
from tests.engine.sampling.benches import bit_mask

TRUNCATIONS: dict[str, dict[str, float]] = {
    "few likeliest": {"top_k": 7},
    "most of the tokens": {"top_k": 149},
    "more than there are": {"top_k": 5000},
    "a tiny nucleus": {"top_p": 0.01},
    "a nucleus": {"top_p": 0.9},
    "nearly everything": {"top_p": 0.9999},
    "likely beside the likeliest": {"min_p": 0.1},
    "the likeliest and its equals": {"min_p": 1.0},
    "all rules": {"top_k": 40, "top_p": 0.8, "min_p": 0.02},
    "a nucleus of few": {"top_k": 3, "top_p": 0.5},
    "a nucleus of many, and likely": {"top_k": 100, "top_p": 0.3, "min_p": 0.3},
}
ids = st.integers(0, V - 1)
all_params = st.builds(
    SamplingParams,
    max_tokens=st.just(100),
    temperature=st.sampled_from([0.0, 0.01, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 1, 5, 60, V]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 0.3, 0.95]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.8, 1.5]),
    presence_penalty=st.sampled_from([0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.7]),
    logit_bias=st.dictionaries(ids, st.floats(-20, 20, width=32), max_size=4),
    min_tokens=st.sampled_from([0, 3]),
    stop_token_ids=st.tuples(ids),
    bad_words=st.lists(st.sampled_from([(3,), (7, 9, 20), (9, 21), (1, 7, 9, 22)]), max_size=3).map(tuple),
    allowed_token_ids=st.one_of(st.none(), st.lists(ids, min_size=1, max_size=40).map(tuple)),
)


def check_steps(bench: DrawBench, steps: list[Floats]) -> None:
    """Draws alike step after step, and remembers alike."""
    for logits in steps:
        assert bench.drawn(logits) == bench.expected(logits)
        bench.num_outputs = [count + 1 for count in bench.num_outputs]
    assert torch.equal(bench.state.last_tokens.cpu(), bench.reference.last_tokens)
    assert torch.equal(bench.state.counts.rows.cpu(), bench.reference.counts.rows)
    assert torch.equal(bench.state.history.rows.cpu(), bench.reference.history.rows)


@pytest.mark.parametrize("name", TRUNCATIONS)
def test_draws_from_a_part_are_those_of_torch(device: torch.device, name: str) -> None:
    batch = [params(temperature=temperature, **TRUNCATIONS[name]) for temperature in (0.3, 2.0)]
    bench = DrawBench(batch, device)
    check_steps(bench, [logits_like(5, 2, spread=0.5 + len(name) % 3)])


@pytest.mark.parametrize("name", ["few likeliest", "a nucleus", "all rules"])
def test_of_equal_tokens_at_the_end_of_a_part_the_first_stay(device: torch.device, name: str) -> None:
    batch = [params(temperature=1.0, **TRUNCATIONS[name])] * 2
    bench = DrawBench(batch, device, config=WIDE)
    check_steps(bench, [logits_like(1, 2, spread=1.0, levels=1)])


def test_rows_that_hold_nothing_draw_their_first_token(device: torch.device) -> None:
    batch = [params(**TRUNCATIONS[name]) for name in ("few likeliest", "a nucleus", "all rules")]
    bench = DrawBench(batch, device, config=WIDE)
    assert bench.drawn(np.full((3, V), -np.inf, np.float32)) == [0, 0, 0]


@settings(max_examples=3, deadline=None)
@given(batch=st.lists(all_params, min_size=2, max_size=3), seed=st.integers(0, 2**32), broken=st.booleans())
def test_any_batch_draws_as_torch_does(
    device: torch.device, batch: list[SamplingParams], seed: int, broken: bool
) -> None:
    steps = [logits_like(seed + step, len(batch)) for step in range(2)]
    if broken:
        steps[0][np.random.default_rng(seed).random(steps[0].shape) < 0.4] = np.nan
    check_steps(DrawBench(batch, device, seed=seed, config=WIDE), steps)


EDITS: dict[str, dict[str, object]] = {
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.9},
    "a bias that lifts": {"logit_bias": {100: 50.0, 3: -5.0}},
    "a bias of more ids than are added at once": {"logit_bias": {i: float(i % 7) * 3 for i in range(140)}},
    "a forbidden token": {"bad_words": tuple((i,) for i in range(0, V, 2))},
    "a forbidden end": {"min_tokens": 3, "stop_token_ids": tuple(range(60))},
    "an end that may come": {"min_tokens": 2, "stop_token_ids": tuple(range(60))},
    "words": {"bad_words": (*((7, 9, i) for i in range(60)), (8, 9, 70), (1, 2, 7, 9, 71))},
    "allowed ids": {"allowed_token_ids": (2, 64, 149)},
    "allowed ids that are forbidden": {"allowed_token_ids": (8, 6), "bad_words": ((8,), (6,))},
    "everything": {
        "repetition_penalty": 0.6, "logit_bias": {7: 3.0, 9: 4.0}, "bad_words": ((7,), (9, 100)),
        "allowed_token_ids": tuple(range(0, V, 3)),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_logits_are_changed_as_torch_changes_them(device: torch.device, name: str) -> None:
    batch = [params(temperature=0.0, **EDITS[name]), params(temperature=1.0, **EDITS[name])]
    check_steps(DrawBench(batch, device), [logits_like(seed, 2) for seed in (5, 6)])


def test_masks_of_a_step_narrow_what_lanes_may_draw(device: torch.device) -> None:
    batch = [params(), params(temperature=0.0), params(allowed_token_ids=(3, 4, 33, 90)), params(top_k=5)]
    bench = DrawBench(batch, device)
    choice = CudaChoice(bench.state, bench.table)
    masks = LaneMasks([0, 2, 3], np.stack([bit_mask(some, V) for some in ([9, 149], [33, 34, 90], range(100, 150))]))
    plan = make_plan(bench.state, range(4))
    for seed in (1, 2):
        logits = logits_like(seed, 4)
        expected = bench.expected(logits, masks)
        found = choice.choose(torch.from_numpy(logits).to(device), plan, bench.lanes(), masks).tolist()
        assert found == expected
        assert found[0] in (9, 149)
        assert found[2] in (33, 90)
        assert found[3] >= 100


def test_memory_that_moves_is_found_again(device: torch.device) -> None:
    words = params(temperature=0.0, bad_words=((7, 9, 20), (20, 21)), frequency_penalty=1.0)
    bench = DrawBench([words, params(temperature=0.0)], device, config=WIDE)
    check_steps(bench, [logits_like(1, 2)])
    for state in (bench.reference, bench.state):  # its counts and histories grow, and move with that
        state.history.ensure_width(1000)
        state.assign(1, params=words, seed=3, stream=0, prompt_ids=PROMPT, output_ids=[7, 9], eos_token_ids=())
    bench.num_outputs[1] = 2
    check_steps(bench, [logits_like(2, 2), logits_like(3, 2)])


def test_lanes_that_ask_for_nothing_keep_their_logits(device: torch.device) -> None:
    bench = DrawBench([params(top_k=3), params()], device, config=SMALL)
    logits = logits_like(4, 2)
    assert not bench.table.is_plain([0, 1])
    assert bench.table.is_plain([1])
    assert bench.drawn(logits) == bench.expected(logits)
    assert np.array_equal(bench.seen[1], logits[1])


@pytest.mark.parametrize("num_lanes", some([8, 64], [64]))
def test_kernels_for_a_real_vocabulary_fit_a_processor(num_lanes: int) -> None:
    meta, size = torch.device("meta"), 151_936
    table = DrawTable(SamplerState(num_rows=num_lanes, vocab_size=size, device=meta))
    ints = torch.empty(num_lanes, dtype=torch.int32, device=meta)
    masks = torch.empty((num_lanes, size // 32), dtype=torch.int32, device=meta)
    logits = torch.empty((num_lanes, size), device=meta)
    with recorded_launches() as launches:
        lanes = DrawLanes(ints, ints, ints, masks, ints)
        launch_draw(logits, table, lanes, ints, num_lanes=num_lanes, form=FULL, pdl=True)
        lanes = DrawLanes(ints, ints, ints)
        launch_draw(logits, table, lanes, ints, num_lanes=num_lanes, form=PLAIN, pdl=True)
    facts = compile_kernels(launches)
    assert len(facts) == 6
    assert all(found.spills == 0 and found.shared_bytes <= SHARED_LIMIT for found in facts)
