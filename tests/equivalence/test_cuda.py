"""The same requests on a GPU: the CPU's tokens, whatever the schedule."""

from __future__ import annotations

import os
import random
from pathlib import Path

import msgspec
import pytest
import torch

from engine.config import KVFormat
from engine.loop import EngineLoop
from engine.request import GenerateRequest, ProgramSpec
from tests.equivalence.harness import Outputs, Step, open_loop, request, run
from tests.equivalence.test_random_schedules import KINDS, NUM_KINDS
from tests.tiny_adapters import KINDS as KINDS_OF_ADAPTERS
from tests.tiny_adapters import write_tiny_adapter
from tests.tiny_models import Family, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

HISTORIES = int(os.environ.get("WYE_TEST_HISTORIES", "100"))
"""Random histories that engines live through; each makes some 25 schedules."""

SHARES = 8
"""Engines among which they are shared out, so that several processes may run them."""


def _requests() -> list[GenerateRequest]:
    rng = random.Random(6)
    prompts = [[rng.randrange(400) for _ in range(length)] for length in (1, 9, 40, 70)]
    greedy = [request(f"greedy{index}", prompt) for index, prompt in enumerate(prompts)]
    drawn = [
        request(f"drawn{index}", prompt, temperature=0.9, seed=index, top_p=0.9, top_k=40, frequency_penalty=0.5)
        for index, prompt in enumerate(prompts)
    ]
    return greedy + drawn


@pytest.mark.parametrize("step", ["torch", "cuda"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_gpu_yields_the_cpus_tokens_chunked_cached_and_overlapped(family: Family, step: Step, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, family, seed=4)
    with open_loop(model) as loop:
        expected = run(loop, _requests())
    with open_loop(model, device="cuda", step=step, max_batch_tokens=32) as loop:
        assert run(loop, _requests()) == expected
        assert run(loop, _requests()) == expected
    with open_loop(model, device="cuda", step=step, num_pages=12, overlap=False) as loop:
        assert run(loop, _requests()) == expected
        assert loop.stats.num_preemptions > 0


@pytest.mark.parametrize("step", ["torch", "cuda"])
def test_lanes_with_adapters_and_without_share_steps_of_a_gpu(step: Step, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", "llama", seed=4)
    adapters = [write_tiny_adapter(tmp_path / kind, model, kind, seed=at) for at, kind in enumerate(KINDS_OF_ADAPTERS)]
    names = ["", *(adapter.name for adapter in adapters)]
    asked = [request(f"{name} {at}", [at, 9, 40, 7], adapter=name) for name in names for at in range(2)]
    with open_loop(model, adapters=adapters) as loop:
        expected = run(loop, asked)
    with open_loop(model, device="cuda", step=step, adapters=adapters, max_batch_tokens=32) as loop:
        assert run(loop, asked) == expected


def _kind(number: int, name: str) -> GenerateRequest:
    """Requests of all kinds; every other one reports nothing, so that its tokens are drawn in the recorded step."""
    made = KINDS[number](name)
    if number % 2 == 0:
        return made
    return msgspec.structs.replace(
        made, sampling=msgspec.structs.replace(made.sampling, logprobs=None), prompt_logprobs=None
    )


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_gpu_yields_the_cpus_tokens_with_keys_and_values_of_one_byte(name: KVFormat, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, "qwen3", seed=4)
    with open_loop(model, kv_dtype=name) as loop:
        expected = run(loop, _requests())
    with open_loop(model, device="cuda", step="cuda", kv_dtype=name) as loop:
        assert run(loop, _requests()) == expected


PROGRAMS = (
    """
state.level = 1.0

def sample(logits, key, prev):
    state.level = state.level * 0.5 + float(prev % 5)
    return gumbel_argmax(logits + where(one_hot(prev), state.level, 0.0), key)
""",
    """
def sample(logits, key, history, counts):
    return where(uniform(key) < 0.2, history[-2], argmax(logits - float(counts)))
""",
)
"""Of kinds behind the others."""


def _any_kind(number: int, name: str) -> GenerateRequest:
    """Those of `_kind`, and some that draw by programs."""
    if number < NUM_KINDS:
        return _kind(number, name)
    drawn = request(name, [5, number % 3, 9], max_tokens=12, seed=number)
    return msgspec.structs.replace(drawn, program=ProgramSpec(source=PROGRAMS[number % len(PROGRAMS)]))


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_random_histories_on_a_gpu_yield_what_requests_yield_alone(
    graphs: str, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny_model(tmp_path, "qwen3", seed=1)
    monkeypatch.setenv("WYE_PROGRAM_GRAPHS", "0")
    monkeypatch.setenv("WYE_PROMPT_GRAPHS", "0")
    with open_loop(model, device="cuda", step="cuda", prefix_cache=False, overlap=False) as loop:
        alone = [run(loop, [_any_kind(number, "alone")]) for number in range(NUM_KINDS + 12)]
    monkeypatch.setenv("WYE_PROGRAM_GRAPHS", graphs)
    monkeypatch.setenv("WYE_PROMPT_GRAPHS", graphs)
    with open_loop(model, device="cuda", step="cuda", num_pages=12, max_num_seqs=6, max_batch_tokens=32) as loop:
        for seed in range(share, HISTORIES, SHARES):
            _live_through(loop, random.Random(seed), alone)
        assert loop.stats.num_preemptions > 0


def _live_through(loop: EngineLoop, rng: random.Random, alone: list[Outputs]) -> None:
    """One history, from an empty engine to an empty engine; requests join, end, and are aborted."""
    kinds: dict[str, int] = {}
    aborted: set[str] = set()
    found: Outputs = {}

    def step() -> None:
        for event in loop.step():
            assert event.error is None
            found.setdefault((event.request_id, event.index), []).extend(event.token_ids)

    for count in range(rng.randint(10, 40)):
        if rng.random() < 0.5:
            kinds[str(count)] = rng.randrange(len(alone))
            loop.submit(_any_kind(kinds[str(count)], str(count)))
        if kinds and rng.random() < 0.1:
            aborted.add(rng.choice(list(kinds)))
            loop.abort(list(aborted)[-1])
        step()
    while loop.has_work:
        step()
    for name, number in kinds.items():
        for (_, index), expected in alone[number].items():
            token_ids = found.get((name, index), [])
            assert token_ids == (expected[: len(token_ids)] if name in aborted else expected)
    loop.check_integrity()
    loop.clear_cache()
    assert (loop.stats.num_used_pages, loop.stats.num_running, loop.stats.num_waiting) == (0, 0, 0)
