"""Known shapes with random weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.errors import ModelLoadError
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import load_model
from engine.models.parameters import parameter_shapes
from engine.models.shapes import SHAPES, RandomCheckpoint
from tests.engine.models.harness import run_tokens


@pytest.mark.parametrize(
    ("name", "millions"),
    [("smollm2-135m", 134.5), ("qwen3-0.6b", 596.0), ("llama-3.2-1b", 1235.8), ("llama-3.1-8b", 8030.3)],
)
def test_a_shape_has_as_many_parameters_as_the_model_it_is_named_after(name: str, millions: float) -> None:
    count = sum(torch.Size(shape).numel() for shape in parameter_shapes(SHAPES[name]).values())
    assert count / 1e6 == pytest.approx(millions, rel=1e-3)


def test_an_unknown_shape_lists_the_known_ones() -> None:
    with pytest.raises(ModelLoadError, match=r"qwen3-0\.6b"):
        open_checkpoint("shape:gpt-7")


def test_random_weights_are_a_function_of_shape_and_seed() -> None:
    small = replace(SHAPES["qwen3-0.6b"], num_layers=2, vocab_size=300, hidden_size=64, intermediate_size=96)
    first, again, other = (RandomCheckpoint(small, seed) for seed in (1, 1, 2))
    logits = [
        run_tokens(load_model(checkpoint, device="cpu", dtype=torch.float32), [1, 2, 3])
        for checkpoint in (first, again, other)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])
    assert logits[0].isfinite().all()
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
