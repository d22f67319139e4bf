"""The step of any lanes computes what torch's decoder computes, in float32 to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.cudnn import CudnnBackend
from engine.attention.cudnn_library import attend_by_torch
from engine.attention.fresh import Cuts
from engine.attention.sdpa import SdpaBackend
from engine.attention.triton import TritonBackend
from engine.cuda.decoder import CudaDecoder
from engine.cuda.model import CudaModel
from engine.kv.storage import KVStorage
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import load_model
from engine.models.step import StepModel
from engine.models.weights import load_weights
from tests.engine.cuda.amounts import some
from tests.engine.models.harness import Lane, run_step, storage_for
from tests.tiny_models import LLAMA3_ROPE, Family, write_tiny_model

VARIANTS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
}


def logits_of(model: StepModel, storage: KVStorage) -> torch.Tensor:
    """Three lanes in chunks of different lengths, then one token each."""
    draw = torch.Generator().manual_seed(2)
    lanes = [
        Lane(token_ids=torch.randint(0, 512, (45,), generator=draw).tolist(), pages=pages)
        for pages in ([5, 2, 9], [0, 7, 3], [1, 4, 8])
    ]
    run_step(model, storage, [(lanes[0], 20), (lanes[1], 1), (lanes[2], 7)])
    run_step(model, storage, [(lanes[1], 30), (lanes[0], 1)])
    run_step(model, storage, [(lane, 1) for lane in lanes])
    return torch.cat([torch.cat(lane.logits) for lane in lanes])


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_torch(variant: str, device: torch.device, tmp_path: Path) -> None:
    family, overrides = VARIANTS[variant]
    layers = some(3, 2 if family == "qwen3" else 1)
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, family, num_hidden_layers=layers, **overrides))
    reference = load_model(checkpoint, device=device, dtype=torch.float32, attention="sdpa")
    weights = load_weights(checkpoint, torch.float32, device)
    model = CudaDecoder(CudaModel.of(checkpoint.config, weights), SdpaBackend())

    expected = logits_of(reference, storage_for(checkpoint.config, num_pages=10, device=device))
    found = logits_of(model, storage_for(checkpoint.config, num_pages=10, device=device))

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", [(7, 20), (16, 32)], ids=["as they lie", "filled up"])
def test_prompts_attended_to_as_rows_give_the_same(
    sizes: tuple[int, ...], variant: str, device: torch.device, tmp_path: Path
) -> None:
    family, overrides = VARIANTS[variant]
    checkpoint = open_checkpoint(write_tiny_model(tmp_path, family, num_hidden_layers=some(3, 1), **overrides))
    weights = load_weights(checkpoint, torch.float32, device)
    calls = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
        calls.append(query.shape[2])
        return attend_by_torch(query.double(), key.double(), value.double(), scale).float()

    cuts = Cuts(sizes=sizes, least_filled=5, batch_rows=64)
    backend = CudnnBackend(TritonBackend(), cuts, attend, wanted=1)
    backend._window = checkpoint.config.sliding_window

    found = logits_of(
        CudaDecoder(CudaModel.of(checkpoint.config, weights), backend),
        storage_for(checkpoint.config, num_pages=10, device=device),
    )

    reference = load_model(checkpoint, device=device, dtype=torch.float32, attention="sdpa")
    expected = logits_of(reference, storage_for(checkpoint.config, num_pages=10, device=device))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert set(calls) == set(sizes)
