"""The same request yields the same tokens however its work is cut, shared, interrupted or overlapped.

With the native step the log-probabilities must be the same too, to the bit. Torch's float32 differs in the last bits.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.loop import EngineLoop
from engine.request import GenerateRequest
from tests.equivalence.harness import NATIVE_STEPS, STEPS, Step, open_loop, request, run, run_scored
from tests.tiny_models import write_tiny_model

VOCAB = 400

Outputs = dict[tuple[str, int], list[Any]]
"""Tokens; with the native step, pairs of token and log-probability."""


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp(request.param), request.param, seed=1)


@pytest.fixture(scope="module", params=STEPS)
def step(request: pytest.FixtureRequest) -> Step:
    found: Step = request.param
    return found


def play(loop: EngineLoop, requests: Sequence[GenerateRequest]) -> Outputs:
    """All that must be the same."""
    if loop.info.step == "torch":
        return dict(run(loop, requests))
    return dict(run_scored(loop, requests))


def _mixed_requests() -> list[GenerateRequest]:
    rng = random.Random(3)
    prompts = [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 5, 17, 40, 70, 33)]
    greedy = [request(f"greedy{index}", prompt, logprobs=0) for index, prompt in enumerate(prompts)]
    drawn = [
        request(
            f"drawn{index}",
            prompt,
            temperature=0.9,
            seed=index,
            top_p=0.95,
            top_k=50,
            frequency_penalty=0.3,
            logprobs=0,
        )
        for index, prompt in enumerate(prompts)
    ]
    return greedy + drawn


@pytest.fixture(scope="module")
def undisturbed(model: Path, step: Step) -> Outputs:
    """Every request alone, in one chunk, without cache or overlap."""
    outputs: Outputs = {}
    with open_loop(model, step=step, prefix_cache=False, overlap=False) as loop:
        for each in _mixed_requests():
            outputs |= play(loop, [each])
    return outputs


def test_batched_equals_alone(model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step, prefix_cache=False, overlap=False) as loop:
        assert play(loop, _mixed_requests()) == undisturbed


def test_overlapped_equals_plain(model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step, prefix_cache=False, overlap=True) as loop:
        assert play(loop, _mixed_requests()) == undisturbed


def test_chunked_equals_whole(model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step, prefix_cache=False, max_batch_tokens=16) as loop:
        assert play(loop, _mixed_requests()) == undisturbed


def test_cached_equals_fresh(model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step) as loop:
        assert play(loop, _mixed_requests()) == undisturbed
        assert play(loop, _mixed_requests()) == undisturbed
        assert loop.stats.num_cached_tokens > 0


def test_preempted_equals_undisturbed(model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step, num_pages=9) as loop:
        assert play(loop, _mixed_requests()) == undisturbed
        assert loop.stats.num_preemptions > 0


@pytest.mark.parametrize("page_size", [1, 4, 5])
def test_small_pages_in_disorder_equal_large_ones(
    page_size: int, model: Path, step: Step, undisturbed: Outputs
) -> None:
    with open_loop(model, step=step, num_pages=480 // page_size, page_size=page_size, max_batch_tokens=24) as loop:
        assert play(loop, _mixed_requests()) == undisturbed


@pytest.mark.parametrize("step", NATIVE_STEPS, scope="module", indirect=True)
@pytest.mark.parametrize("num_threads", [2, 3])
def test_any_number_of_threads_equals_one(num_threads: int, model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step, num_threads=num_threads, max_batch_tokens=40) as loop:
        assert play(loop, _mixed_requests()) == undisturbed


@pytest.mark.parametrize("step", ["torch"], scope="module", indirect=True)
def test_the_cpu_backend_equals_the_reference_backend(model: Path, step: Step, undisturbed: Outputs) -> None:
    with open_loop(model, step=step, attention="sdpa") as loop:
        assert play(loop, _mixed_requests()) == undisturbed


def test_n_continuations_are_the_streams_they_would_be_alone(model: Path, step: Step) -> None:
    asked = request("n", list(range(30, 60)), n=3, temperature=1.2, seed=9, logprobs=0)
    with open_loop(model, step=step) as loop:
        together = play(loop, [asked])
        assert len({tuple(tokens) for tokens in together.values()}) == 3
        again = play(loop, [asked])
    assert again == together
    with open_loop(model, step=step, prefix_cache=False, num_pages=8, max_num_seqs=1) as loop:
        assert play(loop, [asked]) == together
