"""The torch decoder on a GPU computes what it computes on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import load_model
from engine.models.shapes import SHAPES, RandomCheckpoint
from tests.engine.models.harness import run_tokens
from tests.tiny_models import FAMILIES, Family, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOKENS = [(index * 37) % 500 for index in range(90)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.25)])
def test_logits_on_a_gpu_equal_those_of_the_cpu(
    tmp_path: Path, family: Family, dtype: torch.dtype, tolerance: float
) -> None:
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, family, dtype=torch.bfloat16))
    expected = run_tokens(load_model(checkpoint, device="cpu", dtype=torch.float32), TOKENS, backend="sdpa")
    model = load_model(checkpoint, device="cuda", dtype=dtype)
    logits = run_tokens(
        model, TOKENS, chunks=[1, 40, 20, *[1] * 29], pages=[4, 1, 9, 2, 7, 3], backend="sdpa", dtype=dtype
    )
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.cpu(), expected, atol=tolerance, rtol=0)


def test_random_weights_are_made_on_the_gpu() -> None:
    small = replace(SHAPES["llama-3.2-1b"], num_layers=2, vocab_size=1000)
    model = load_model(RandomCheckpoint(small), device="cuda", dtype=torch.bfloat16)
    logits = run_tokens(model, TOKENS, backend="sdpa", dtype=torch.bfloat16)
    assert logits.shape == (90, 1000)
    assert logits.isfinite().all()
