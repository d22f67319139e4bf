"""Smoothing of keys: measured once, the same each time, and never at the cost of what attention means."""

from __future__ import annotations

import pytest
import torch

from engine.kv.storage import KVStorage
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import Decoder, load_model
from engine.quantization.calibration import calibrate, steady_mean
from engine.quantization.formats import FORMATS
from loadtests.teacher import make_storage, read_window
from tests.tiny_models import write_tiny_model

TOKENS = [(7 * index) % 500 for index in range(60)]

by_format = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    """A model whose keys have large steady means: qwen2 has biases."""
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory, "qwen2")
    return load_model(open_checkpoint(directory), device="cpu", dtype=torch.float32, attention="sdpa")


def storage_of(model: Decoder, name: str, *, calibrated: bool) -> KVStorage:
    storage = make_storage(model.config, 64, FORMATS[name].dtype)
    if calibrated:
        calibrate(model, storage, model.config.max_position)
    return storage


@by_format
def test_it_is_the_same_at_every_start_and_writes_no_page(model: Decoder, name: str) -> None:
    one, other = (storage_of(model, name, calibrated=True) for _ in range(2))
    assert one.smoothing is not None
    assert other.smoothing is not None
    assert torch.equal(one.smoothing.mean, other.smoothing.mean)
    assert torch.equal(one.smoothing.scale, other.smoothing.scale)
    assert one.smoothing.scale.isfinite().all()
    assert (one.smoothing.scale > 0).all()
    assert ((one.smoothing.scale == 1).all().item()) == (name == "fp8")
    assert not any(tensor.any() for tensor in one.paged)


@by_format
def test_logits_stay_near_those_of_exact_keys(model: Decoder, name: str) -> None:
    expected = read_window(model, make_storage(model.config, 64, torch.float32), TOKENS, 60)
    for calibrated in (True, False):
        found = read_window(model, storage_of(model, name, calibrated=calibrated), TOKENS, 60)
        error = ((found - expected).abs().mean() / expected.std()).item()
        assert 1e-5 < error < (0.02 if name == "int8" else 0.1)


@by_format
def test_chunks_change_nothing(model: Decoder, name: str) -> None:
    storage = storage_of(model, name, calibrated=True)
    whole = read_window(model, storage, TOKENS, 60)
    for chunk in (1, 17):
        torch.testing.assert_close(read_window(model, storage, TOKENS, chunk), whole, atol=1e-3, rtol=0)


def test_a_steady_mean_is_one_that_does_not_turn_with_position() -> None:
    keys = torch.randn(200, 2, 8, generator=torch.Generator().manual_seed(0)) * 0.1
    keys[:, 1, 3] += 5
    angles = torch.linspace(0, 6, 200)
    keys[:, 0, 2] += 5 * angles.cos()
    keys[:, 0, 6] += 5 * angles.sin()
    mean = steady_mean(keys)
    assert mean[1, 3] == pytest.approx(5, abs=0.05)
    assert mean[0, 2] == mean[0, 6] == 0
