"""The accelerator's forms choose what the CPU's choose, and never wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from engine.sampling.params import SamplingParams
from engine.sampling.sampler import LaneMasks, SampleLane, Sampler
from engine.sampling.state import SamplerState
from tests.engine.sampling.benches import bit_mask

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

VOCAB_SIZE = 49_152
BATCH = [
    SamplingParams(max_tokens=99, temperature=0.0),
    SamplingParams(max_tokens=99),
    SamplingParams(max_tokens=99, temperature=0.0, logprobs=5, min_tokens=3),
    SamplingParams(max_tokens=99, temperature=0.7, top_p=0.9, logprobs=0),
    SamplingParams(max_tokens=99, top_k=40, top_p=0.95, frequency_penalty=0.5),
    SamplingParams(max_tokens=99, min_p=0.05, repetition_penalty=1.2),
    SamplingParams(max_tokens=99, temperature=2.0, logit_bias={7: 5.0}, bad_words=((3,), (4, 5))),
    SamplingParams(max_tokens=99, top_k=1000, allowed_token_ids=tuple(range(0, VOCAB_SIZE, 3))),
]

MASKS = LaneMasks([6], bit_mask(range(1, VOCAB_SIZE, 2), VOCAB_SIZE)[None])


def sampler_on(device: torch.device) -> tuple[SamplerState, Sampler]:
    state = SamplerState(num_rows=len(BATCH), vocab_size=VOCAB_SIZE, device=device)
    for row, params in enumerate(BATCH):
        state.assign(
            row, params=params, seed=row - 4, stream=0, prompt_ids=[1, 2, 3], output_ids=[4], eos_token_ids=[2]
        )
    return state, Sampler(state)


def lanes_at(step: int) -> list[SampleLane]:
    return [SampleLane(row=row, position=4 + step, num_output=1 + step) for row in range(len(BATCH))]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any wait of the host for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_mixed_batch_chooses_alike_on_both_devices_and_never_waits() -> None:
    cuda = torch.device("cuda")
    (cpu_state, on_cpu), (cuda_state, on_cuda) = sampler_on(torch.device("cpu")), sampler_on(cuda)
    num_different = 0
    for step in range(50):
        logits = (np.random.default_rng(step).standard_normal((len(BATCH), VOCAB_SIZE)) * 3).astype(np.float32)
        on_device = torch.from_numpy(logits).to(cuda)
        with no_waiting():
            found = on_cuda.sample(on_device, lanes_at(step), MASKS)
        expected = on_cpu.sample(torch.from_numpy(logits), lanes_at(step), MASKS)
        assert found.logprobs is not None
        assert expected.logprobs is not None
        different = found.token_ids.cpu() != expected.token_ids
        num_different += int(different.sum())
        same = ~different
        assert torch.equal(found.logprobs.top_ids.cpu(), expected.logprobs.top_ids)
        assert torch.equal(found.logprobs.rank.cpu()[same], expected.logprobs.rank[same])
        assert torch.allclose(found.logprobs.chosen.cpu()[same], expected.logprobs.chosen[same], atol=1e-4)
        # A near tie may fall either way; from here on both remember the same.
        assert torch.equal(cuda_state.last_tokens.cpu()[same], cpu_state.last_tokens[same])
        if num_different:
            break
    assert num_different <= 1


def test_rows_are_assigned_and_released_without_waiting() -> None:
    state, _ = sampler_on(torch.device("cuda"))
    with no_waiting():
        for row, params in enumerate(BATCH):
            state.release(row)
            state.assign(row, params=params, seed=1, stream=0, prompt_ids=[1], output_ids=[5, 5], eos_token_ids=[2])


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_broken_logits_choose_a_valid_id(broken: float) -> None:
    _, sampler = sampler_on(torch.device("cuda"))
    for share in (VOCAB_SIZE // 2, VOCAB_SIZE):
        logits = torch.randn((len(BATCH), VOCAB_SIZE), device="cuda")
        logits[:, :share] = broken
        found = sampler.sample(logits, lanes_at(0), MASKS)
        assert ((found.token_ids >= 0) & (found.token_ids < VOCAB_SIZE)).all()
        assert found.logprobs is not None
        assert found.logprobs.top_logprobs.isfinite().all()
