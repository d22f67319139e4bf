"""The same request yields the same tokens however its work is cut, shared, interrupted or overlapped."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.request import GenerateRequest
from tests.equivalence.harness import Outputs, open_loop, request, run
from tests.tiny_models import write_tiny_model

VOCAB = 400


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp(request.param), request.param, seed=1)


def _mixed_requests() -> list[GenerateRequest]:
    rng = random.Random(3)
    prompts = [[rng.randrange(VOCAB) for _ in range(length)] for length in (1, 5, 17, 40, 70, 33)]
    greedy = [request(f"greedy{index}", prompt) for index, prompt in enumerate(prompts)]
    drawn = [
        request(f"drawn{index}", prompt, temperature=0.9, seed=index, top_p=0.95, top_k=50, frequency_penalty=0.3)
        for index, prompt in enumerate(prompts)
    ]
    return greedy + drawn


@pytest.fixture(scope="module")
def undisturbed(model: Path) -> Outputs:
    """Every request alone, in one chunk, without cache or overlap."""
    outputs: Outputs = {}
    with open_loop(model, prefix_cache=False, overlap=False) as loop:
        for each in _mixed_requests():
            outputs |= run(loop, [each])
    return outputs


def test_batched_equals_alone(model: Path, undisturbed: Outputs) -> None:
    with open_loop(model, prefix_cache=False, overlap=False) as loop:
        assert run(loop, _mixed_requests()) == undisturbed


def test_overlapped_equals_plain(model: Path, undisturbed: Outputs) -> None:
    with open_loop(model, prefix_cache=False, overlap=True) as loop:
        assert run(loop, _mixed_requests()) == undisturbed


def test_chunked_equals_whole(model: Path, undisturbed: Outputs) -> None:
    with open_loop(model, prefix_cache=False, max_batch_tokens=16) as loop:
        assert run(loop, _mixed_requests()) == undisturbed


def test_cached_equals_fresh(model: Path, undisturbed: Outputs) -> None:
    with open_loop(model) as loop:
        assert run(loop, _mixed_requests()) == undisturbed
        assert run(loop, _mixed_requests()) == undisturbed
        assert loop.stats.num_cached_tokens > 0


def test_preempted_equals_undisturbed(model: Path, undisturbed: Outputs) -> None:
    with open_loop(model, num_pages=9) as loop:
        assert run(loop, _mixed_requests()) == undisturbed
        assert loop.stats.num_preemptions > 0


def test_small_pages_in_disorder_equal_large_ones(model: Path, undisturbed: Outputs) -> None:
    with open_loop(model, num_pages=120, page_size=4, max_batch_tokens=24) as loop:
        assert run(loop, _mixed_requests()) == undisturbed


@pytest.fixture
def reference_backend(model: Path) -> Iterator[Outputs]:
    with open_loop(model, attention="sdpa") as loop:
        yield run(loop, _mixed_requests())


def test_the_cpu_backend_equals_the_reference_backend(reference_backend: Outputs, undisturbed: Outputs) -> None:
    assert reference_backend == undisturbed


def test_n_continuations_are_the_streams_they_would_be_alone(model: Path) -> None:
    prompt = list(range(30, 60))
    with open_loop(model) as loop:
        together = run(loop, [request("n", prompt, n=3, temperature=1.2, seed=9)])
        assert len({tuple(tokens) for tokens in together.values()}) == 3
        again = run(loop, [request("n", prompt, n=3, temperature=1.2, seed=9)])
    assert again == together
    with open_loop(model, prefix_cache=False, num_pages=8, max_num_seqs=1) as loop:
        assert run(loop, [request("n", prompt, n=3, temperature=1.2, seed=9)]) == together
