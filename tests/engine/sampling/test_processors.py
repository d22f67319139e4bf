"""Logits before the choice: every value against the plain definition."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.params import SamplingParams
from engine.sampling.plan import make_plan
from engine.sampling.processors import process_logits, sanitize
from engine.sampling.torch_plan import make_torch_plan
from tests.engine.sampling import reference
from tests.engine.sampling.benches import Bench, logits_for, situations
from tests.engine.sampling.reference import Situation


def processed(bench: Bench, logits: torch.Tensor) -> torch.Tensor:
    lanes = [bench.lane(row) for row in range(len(bench.situations))]
    batch = make_plan(bench.state, [lane.row for lane in lanes])
    plan = make_torch_plan(batch, bench.state, max_candidates=0)
    sanitize(logits)
    num_outputs = [lane.num_output for lane in lanes]
    process_logits(logits, plan, bench.state, num_outputs, bench.masks(range(len(lanes))))
    return logits


@settings(max_examples=200)
@given(batch=st.lists(situations, min_size=1, max_size=4), seed=st.integers(0, 2**32), broken=st.booleans())
def test_every_logit_becomes_what_the_plain_definition_says(batch: list[Situation], seed: int, broken: bool) -> None:
    logits = logits_for(seed, len(batch))
    if broken:
        rng = np.random.default_rng(seed)
        logits[rng.random(logits.shape) < 0.3] = np.nan
        logits[rng.random(logits.shape) < 0.3] = -np.inf
    found = processed(Bench(batch), torch.from_numpy(logits.copy()))
    expected = [reference.processed(line, now) for line, now in zip(logits, batch, strict=True)]
    np.testing.assert_array_equal(found.numpy(), np.stack(expected))


@settings(max_examples=60)
@given(batch=st.lists(situations, min_size=1, max_size=3), seed=st.integers(0, 2**32))
def test_logits_follow_tokens_that_only_the_device_has_seen(batch: list[Situation], seed: int) -> None:
    bench = Bench(batch)
    for step in range(4):
        bench.step(logits_for(seed + step, len(batch)))
    line = logits_for(seed, len(batch))
    expected = [reference.processed(one, now) for one, now in zip(line, batch, strict=True)]
    np.testing.assert_array_equal(processed(bench, torch.from_numpy(line.copy())).numpy(), np.stack(expected))


def test_what_no_lane_uses_leaves_logits_untouched() -> None:
    plain = Situation(params=SamplingParams(max_tokens=1, top_p=0.5, top_k=7, logprobs=3))
    logits = torch.from_numpy(logits_for(0, 1))
    assert torch.equal(processed(Bench([plain]), logits.clone()), logits)
