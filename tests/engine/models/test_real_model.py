"""The real model's logits and first answer are those of `transformers` in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import load_model
from tests.engine.models.harness import Lane, run_step, run_tokens, storage_for

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass
class Real:
    path: Path
    tokenizer: Any
    token_ids: list[int]


@pytest.fixture(scope="module")
def real(real_model_path: Path) -> Real:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(real_model_path.parent, gguf_file=real_model_path.name)
    return Real(real_model_path, tokenizer, tokenizer(QUESTION).input_ids)


def test_float32_logits_equal_those_of_transformers(real: Real, transformers_model: Callable[[], Any]) -> None:
    theirs = transformers_model()
    with torch.no_grad():
        expected = theirs(torch.tensor([real.token_ids])).logits[0]
    ours = load_model(open_checkpoint(real.path), device="cpu", dtype=torch.float32)
    logits = run_tokens(ours, real.token_ids, chunks=[20, 1, len(real.token_ids) - 21], pages=[4, 1, 2])
    torch.testing.assert_close(logits, expected, atol=5e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_greedy_answer_is_the_known_one(real: Real, dtype: torch.dtype) -> None:
    model = load_model(open_checkpoint(real.path), device="cpu", dtype=dtype)
    lane = Lane(token_ids=[], pages=[3, 0, 1, 2])
    token_ids = list(real.token_ids)
    lane.token_ids = token_ids
    storage = storage_for(model.config, dtype=dtype)
    run_step(model, storage, [(lane, len(token_ids))])
    for _ in range(12):
        token_ids.append(int(lane.logits[-1][-1].argmax()))
        if token_ids[-1] in model.config.eos_token_ids:
            break
        run_step(model, storage, [(lane, 1)])
    answer = real.tokenizer.decode(token_ids[len(real.token_ids) :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
