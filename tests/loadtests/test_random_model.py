"""Random weights in a known shape: a directory that loads, with another model's tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import open_checkpoint
from engine.models.shapes import SHAPES
from engine.models.weights import load_weights
from engine.text.tokenizer import Tokenizer
from loadtests.random_model import write_random_model
from tests.tiny_models import write_tiny_model


def test_a_directory_has_the_shape_and_a_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(
        SHAPES["qwen3-0.6b"], hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2
    )
    monkeypatch.setitem(SHAPES, "small", replace(small, head_dim=16))
    source = write_tiny_model(tmp_path / "source")

    made = write_random_model("small", source, tmp_path / "made")

    checkpoint = open_checkpoint(made)
    assert checkpoint.config.vocab_size == Tokenizer.load(source).vocab_size
    assert replace(checkpoint.config, vocab_size=0, bos_token_id=None, eos_token_ids=()) == replace(
        SHAPES["small"], vocab_size=0, bos_token_id=None, eos_token_ids=()
    )
    weights = load_weights(checkpoint, torch.bfloat16, torch.device("cpu"))
    assert 0.8 / 8 < weights.layers[1].qkv.float().std() < 1.2 / 8
    assert Tokenizer.load(made).encode("over", add_special=False) == Tokenizer.load(source).encode(
        "over", add_special=False
    )
