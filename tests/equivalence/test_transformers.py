"""The engine's greedy tokens are those of `transformers`: every family on tiny models, and the real model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.equivalence.harness import open_loop, request, run
from tests.tiny_models import Family, write_tiny_model

FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


def _generate(model: Path, prompt: list[int], max_tokens: int) -> list[int]:
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        found = reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            repetition_penalty=1.0,
        )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_model_of_each_family_says_what_transformers_says(family: Family, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path, family, seed=4)
    rng = random.Random(family)
    prompts = [[rng.randrange(400) for _ in range(length)] for length in (3, 29, 61)]
    with open_loop(model, max_batch_tokens=32) as loop:
        ours = run(loop, [request(str(index), prompt) for index, prompt in enumerate(prompts)])
    for index, prompt in enumerate(prompts):
        assert ours[str(index), 0] == _generate(model, prompt, 24)
