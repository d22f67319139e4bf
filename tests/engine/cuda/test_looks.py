"""Kernels write down the distributions that torch describes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.cuda.choice import CudaChoice
from engine.cuda.looks import Looks
from engine.request import Distribution, Readout
from engine.sampling.distribution import describe, outline
from engine.sampling.looks import MOST_LOOKED, WrittenLooks, can_be_written
from engine.sampling.masks import LaneMasks
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import TORCH, SampleLane, Sampler
from engine.sampling.state import SamplerState
from tests.engine.cuda.draw_benches import EOS, PROMPT, V, logits_like, params

READOUT = Readout(top=MOST_LOOKED)


def written(logits: torch.Tensor, device: torch.device, wanted: dict[int, Readout]) -> list[Distribution]:
    """What the kernels make of rows of logits."""
    looks = Looks(len(logits) + 1, logits.shape[1], device)
    flags = torch.tensor([at in wanted for at in range(len(logits))], dtype=torch.int32, device=device)
    looks.launch(logits.to(device), flags, len(logits))
    return WrittenLooks(looks.found.cpu(), list(wanted.items()), logits.shape[1]).read()


def sampler_of(asked: list[SamplingParams], device: torch.device) -> Sampler:
    """Of rows that have drawn two tokens; with torch."""
    state = SamplerState(num_rows=len(asked), vocab_size=V, device=device)
    for row, one in enumerate(asked):
        state.assign(row, params=one, seed=row, stream=row, prompt_ids=PROMPT, output_ids=[7, 9], eos_token_ids=EOS)
    return Sampler(state, form=TORCH)


def with_kernels(sampler: Sampler) -> Sampler:
    sampler._choice = CudaChoice(sampler._state)
    return sampler


def assert_alike(found: list[Distribution], expected: list[Distribution]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        ours, theirs = (np.frombuffer(each.logprobs, "<f4") for each in (one, other))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)
        np.testing.assert_allclose(
            [one.omitted_mass, one.entropy], [other.omitted_mass, other.entropy], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("size", [7, 300, 5000])
def test_looks_are_those_of_torch_with_equals_in_order_of_their_ids(device: torch.device, size: int) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(size)).mul_(3).round_()
    wanted = {0: READOUT, 2: Readout(top=5)}

    found = written(logits, device, wanted)

    assert_alike(found, describe(logits.clone(), list(wanted), list(wanted.values()), outline))


def test_broken_logits_look_as_torch_says(device: torch.device) -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    logits[0, ::2], logits[1], logits[2, 3], logits[3, 5:], logits[4, 3:] = (
        torch.nan,
        -torch.inf,
        torch.inf,
        -0.0,
        -3e38,
    )
    every = dict.fromkeys(range(5), READOUT)

    found = written(logits, device, every)

    assert_alike(found, describe(logits.clone(), range(5), [READOUT] * 5, outline))


def test_rows_of_lanes_that_nobody_wants_to_see_are_left_alone(device: torch.device) -> None:
    looks = Looks(3, 300, device)
    looks.found.fill_(77)
    flags = torch.tensor([0, 1, 0], dtype=torch.int32, device=device)

    looks.launch(torch.zeros((3, 300), device=device), flags, 2)

    assert (looks.found[[0, 2]] == 77).all()
    assert not (looks.found[1] == 77).all()


def test_a_sampler_writes_down_what_it_describes(device: torch.device) -> None:
    asked = [
        params(),
        params(temperature=0.7, frequency_penalty=0.5, logit_bias={3: 4.0, 8: -100.0}),
        params(min_tokens=9),
    ]
    lanes = [SampleLane(row=row, position=6, num_output=2) for row in range(3)]
    masks = LaneMasks([0], np.full((1, -(-V // 32)), 0x0F0F0F0F, dtype=np.int32))
    logits = logits_like(4, 3)
    wanted = {0: READOUT, 1: Readout(top=3), 2: READOUT}
    reference = sampler_of(asked, torch.device("cpu"))

    found = with_kernels(sampler_of(asked, device)).look(torch.from_numpy(logits).to(device), lanes, masks, wanted)

    assert found is not None
    found = WrittenLooks(found.rows.cpu(), found.wanted, found.vocab_size)
    assert_alike(found.read(), list(reference.describe(torch.from_numpy(logits), lanes, masks, wanted).values()))


@pytest.mark.parametrize("readout", [Readout(top=-1), Readout(top=MOST_LOOKED + 1), Readout(top=4, need_mass=0.9)])
def test_what_may_need_more_than_is_written_down_is_not_left_to_it(device: torch.device, readout: Readout) -> None:
    sampler = with_kernels(sampler_of([params()], device))
    lanes = [SampleLane(row=0, position=6, num_output=2)]

    assert not can_be_written(readout)
    assert sampler.look(torch.zeros((1, V), device=device), lanes, None, {0: readout}) is None
