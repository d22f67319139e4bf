"""The real model through the whole engine: what `transformers` says in float32, however the work is arranged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.text.model import TextModel
from tests.equivalence.harness import Outputs, open_loop, request, run

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def prompts(real_model_path: Path) -> list[list[int]]:
    text = TextModel.load(real_model_path)
    assert text.chat_template is not None
    rendered = [text.chat_template.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    return [text.tokenizer.encode(each, add_special=False) for each in rendered]


def test_greedy_answers_are_those_of_transformers(
    real_model_path: Path, prompts: list[list[int]], transformers_model: Callable[[], Any]
) -> None:
    reference = transformers_model()
    with open_loop(real_model_path, max_batch_tokens=32) as loop:
        ours = run(loop, [request(str(index), prompt, max_tokens=NUM_TOKENS) for index, prompt in enumerate(prompts)])
    for index, prompt in enumerate(prompts):
        with torch.inference_mode():
            found = reference.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        assert ours[str(index), 0] == found[0, len(prompt) :].tolist()


def test_with_default_settings_seeded_answers_repeat_cached_batched_and_alone(
    real_model_path: Path, prompts: list[list[int]]
) -> None:
    requests = [
        request(str(index), prompt, max_tokens=NUM_TOKENS // 2, temperature=1.5, seed=index, n=3)
        for index, prompt in enumerate(prompts)
    ]
    alone: Outputs = {}
    with open_loop(real_model_path, weights="bfloat16", prefix_cache=False) as loop:
        for each in requests:
            alone |= run(loop, [each])
    with open_loop(real_model_path, weights="bfloat16", max_batch_tokens=48) as loop:
        assert run(loop, requests) == alone
        assert run(loop, requests) == alone
        assert loop.stats.num_cached_tokens > 0
