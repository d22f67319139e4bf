"""A whole engine with weights, K and V in one byte a number: the cache and chunks change no more than rounding does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig, KVFormat, SchedulingConfig, WeightFormat
from engine.errors import ModelLoadError
from engine.loop import EngineLoop
from tests.equivalence.harness import ScoredOutputs, request, run_scored
from tests.tiny_models import write_tiny_model

CASES: list[tuple[WeightFormat, KVFormat]] = [("float32", "int8"), ("float32", "fp8"), ("int8", "int8"), ("fp8", "fp8")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "qwen3", seed=1)


@contextmanager
def opened(
    model: Path, weights: WeightFormat, kv: KVFormat, *, attention: str = "auto", max_batch_tokens: int = 512
) -> Iterator[EngineLoop]:
    loop = build_loop(
        EngineConfig(
            model=str(model),
            device="cpu",
            step="torch",
            weights=weights,
            attention=attention,
            seed=0,
            check_integrity=True,
            kv=KVConfig(num_pages=128, dtype=kv),
            scheduling=SchedulingConfig(max_num_seqs=16, max_batch_tokens=max_batch_tokens),
        )
    )
    try:
        yield loop
        loop.check_integrity()
    finally:
        loop.close()


def answers(loop: EngineLoop) -> ScoredOutputs:
    """The likeliest next token after each of some prompts."""
    rng = random.Random(3)
    prompts = [[rng.randrange(400) for _ in range(length)] for length in (5, 17, 40, 70, 33, 64, 90, 55)]
    return run_scored(
        loop, [request(f"{index}", prompt, max_tokens=1, logprobs=0) for index, prompt in enumerate(prompts)]
    )


def check_alike(found: ScoredOutputs, expected: ScoredOutputs, tolerance: float) -> None:
    """Log-probabilities of equal choices within a tolerance, and at most one other choice: a near tie."""
    assert found.keys() == expected.keys()
    same = [(found[name][0], expected[name][0]) for name in found if found[name][0][0] == expected[name][0][0]]
    assert len(same) >= len(found) - 1
    assert all(abs(one[1] - other[1]) <= tolerance for one, other in same)


@pytest.mark.parametrize(("weights", "kv"), CASES)
def test_cached_and_chunked_prompts_are_answered_like_fresh_ones(
    model: Path, weights: WeightFormat, kv: KVFormat
) -> None:
    with opened(model, weights, kv) as loop:
        assert (loop.info.dtype, loop.info.kv_dtype, loop.info.step) == (weights, kv, "torch")
        fresh = answers(loop)
        assert loop.stats.num_cached_tokens == 0
        check_alike(answers(loop), fresh, 0.02)
        assert loop.stats.num_cached_tokens > 0
    with opened(model, weights, kv, max_batch_tokens=16) as loop:
        check_alike(answers(loop), fresh, 0.02)
    with opened(model, "float32", "float32") as loop:
        check_alike(answers(loop), fresh, 0.1 if kv == "int8" else 0.4)


def test_pages_of_one_byte_a_number_take_little_more_than_half_of_bfloat16(model: Path) -> None:
    sizes = {}
    formats: list[KVFormat] = ["bfloat16", "int8", "fp8"]
    for kv in formats:
        with opened(model, "float32", kv) as loop:
            sizes[kv] = loop.info.page_bytes
    assert sizes["int8"] == sizes["fp8"]
    assert 0.5 < sizes["int8"] / sizes["bfloat16"] < 0.6


def test_a_backend_that_cannot_read_them_stops_the_start(model: Path) -> None:
    with (
        pytest.raises(ModelLoadError, match="attention backend 'cpu' does not read K and V kept as int8 or fp8"),
        opened(model, "float32", "int8", attention="cpu"),
    ):
        pass
