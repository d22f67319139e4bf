"""The same requests on a GPU: the CPU's tokens, whatever the schedule."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.request import GenerateRequest
from tests.equivalence.harness import open_loop, request, run
from tests.tiny_models import Family, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def _requests() -> list[GenerateRequest]:
    rng = random.Random(6)
    prompts = [[rng.randrange(400) for _ in range(length)] for length in (1, 9, 40, 70)]
    greedy = [request(f"greedy{index}", prompt) for index, prompt in enumerate(prompts)]
    drawn = [
        request(f"drawn{index}", prompt, temperature=0.9, seed=index, top_p=0.9, top_k=40, frequency_penalty=0.5)
        for index, prompt in enumerate(prompts)
    ]
    return greedy + drawn


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_gpu_yields_the_cpus_tokens_chunked_cached_and_overlapped(family: Family, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, family, seed=4)
    with open_loop(model) as loop:
        expected = run(loop, _requests())
    with open_loop(model, device="cuda", max_batch_tokens=32) as loop:
        assert run(loop, _requests()) == expected
        assert run(loop, _requests()) == expected
    with open_loop(model, device="cuda", num_pages=12, overlap=False) as loop:
        assert run(loop, _requests()) == expected
        assert loop.stats.num_preemptions > 0
