"""Adapters on the real model: what `transformers` says with merged weights, on torch and beside the native step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.config import AdapterSource
from engine.text.model import TextModel
from tests.equivalence.harness import STEPS, Step, open_loop, request, run

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

QUESTIONS = ("What is the capital of France?", "Name three primary colours.")
NUM_TOKENS = 16
RANK, ALPHA = 8, 16.0
MODULES = ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
NEAR_TIE = {"torch": 0.0, "native": 0.6, "int8": 1.5}
"""Logits by which a choice may be less likely than the best: bfloat16 weights, and K and V."""


def _adapt(reference: Any, directory: Path) -> AdapterSource:
    """Writes a random DoRA of a model and merges it into the model's weights."""
    directory.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in reference.named_parameters():
        if not name.removesuffix(".weight").endswith(MODULES):
            continue
        num_outputs, num_inputs = weight.shape
        down = torch.randn(RANK, num_inputs, generator=generator) * num_inputs**-0.5
        up = torch.randn(num_outputs, RANK, generator=generator) * 0.1
        lengths = torch.linalg.vector_norm(weight.data, dim=1)
        magnitudes = lengths * (1.0 + 0.1 * torch.randn(num_outputs, generator=generator))
        changed = weight.data + ALPHA / RANK * up @ down
        weight.data = changed * (magnitudes / torch.linalg.vector_norm(changed, dim=1))[:, None]
        module = f"base_model.model.{name.removesuffix('.weight')}"
        tensors[f"{module}.lora_A.weight"], tensors[f"{module}.lora_B.weight"] = down, up
        tensors[f"{module}.lora_magnitude_vector"] = magnitudes
    config = {"peft_type": "LORA", "lora_alpha": ALPHA, "r": RANK, "use_dora": True}
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, directory / "adapter_model.safetensors")
    return AdapterSource(name="random", path=str(directory))


@pytest.mark.parametrize("step", STEPS)
def test_greedy_answers_with_an_adapter_are_those_of_the_merged_model(
    real_model_path: Path, transformers_model: Callable[[], Any], step: Step, tmp_path: Path
) -> None:
    text = TextModel.load(real_model_path)
    assert text.chat_template is not None
    prompts = [
        text.tokenizer.encode(text.chat_template.render([{"role": "user", "content": question}]), add_special=False)
        for question in QUESTIONS
    ]
    reference = transformers_model()
    adapter = _adapt(reference, tmp_path / "random")
    with open_loop(real_model_path, step=step, adapters=[adapter], num_pages=64) as loop:
        requests = [
            request(f"{name} {at}", prompt, max_tokens=NUM_TOKENS, adapter=name)
            for at, prompt in enumerate(prompts)
            for name in ("random", "")
        ]
        ours = run(loop, requests)
    for at, prompt in enumerate(prompts):
        answer = ours[f"random {at}", 0]
        assert answer != ours[f" {at}", 0]
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        margins = logits.amax(-1) - logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert float(margins.max()) <= NEAR_TIE[step], (step, margins)
