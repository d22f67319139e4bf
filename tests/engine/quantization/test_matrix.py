"""Quantized matrices: as near as their format allows, row by row, and products that mean what they say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.layers.head import LMHead
from engine.layers.linear import Linear
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import load_model
from engine.models.parameters import LayerWeights
from engine.models.weights import load_weights
from engine.quantization.formats import FORMATS, dtype_name, format_of
from engine.quantization.matrix import QuantizedMatrix, quantize, quantize_into
from engine.quantization.product import QuantizedProduct
from tests.engine.models.harness import run_tokens
from tests.tiny_models import FAMILIES, Family, write_tiny_model

CPU = torch.device("cpu")
TOKENS = [(7 * index) % 500 for index in range(40)]

by_format = pytest.mark.parametrize("name", FORMATS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@by_format
def test_each_row_uses_all_of_its_format_and_is_off_by_half_a_step_at_most(name: str) -> None:
    weight = random(20, 96) * torch.logspace(-4, 4, 20)[:, None]
    matrix = quantize(weight, FORMATS[name])
    assert matrix.values.dtype == FORMATS[name].dtype
    assert (matrix.values.float().abs().amax(1) == FORMATS[name].most).all()
    error = (matrix.dequantized() - weight).abs()
    if name == "int8":
        assert (error <= matrix.scale[:, None] * 0.501).all()
    else:  # three bits behind the leading one, and below 2**-6 steps of 2**-9
        assert (error <= torch.maximum(weight.abs() / 16, matrix.scale[:, None] * 2**-9) * 0.501 * 2).all()
    assert error.max() > 0


@by_format
def test_a_row_of_zeros_stays_zero_and_what_is_not_finite_shows_in_its_scale(name: str) -> None:
    weight = random(4, 16)
    weight[1] = 0
    weight[2, 3] = float("nan")
    weight[3, 5] = float("inf")
    matrix = quantize(weight, FORMATS[name])
    assert torch.equal(matrix.dequantized()[1], torch.zeros(16))
    assert matrix.scale.isfinite().tolist() == [True, True, False, False]


@by_format
def test_rows_quantized_in_place_equal_the_whole(name: str) -> None:
    weight = random(12, 32)
    whole = quantize(weight, FORMATS[name])
    parts = QuantizedMatrix(torch.empty_like(whole.values), torch.empty_like(whole.scale))
    for start, stop in ((0, 5), (5, 12)):
        rows = QuantizedMatrix(parts.values[start:stop], parts.scale[start:stop])
        quantize_into(rows, weight[start:stop])
    assert torch.equal(parts.values.view(torch.uint8), whole.values.view(torch.uint8))
    assert torch.equal(parts.scale, whole.scale)


@by_format
@pytest.mark.parametrize("packs", [True, False])
def test_a_product_is_that_of_the_dequantized_matrix(name: str, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        monkeypatch.setattr("engine.quantization.product.can_pack", lambda: False)
    matrix, hidden, bias = quantize(random(24, 64), FORMATS[name]), random(5, 64, seed=1), random(24, seed=2)
    expected = hidden @ matrix.dequantized().t() + bias
    product = QuantizedProduct(matrix.values, matrix.scale, bias)
    for found in (product(hidden), matrix.product(hidden, bias), Linear(matrix.values, bias, matrix.scale)(hidden)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(LMHead(matrix.values, matrix.scale)(hidden), expected - bias, atol=2e-3, rtol=1e-3)


def test_formats_are_found_by_what_torch_calls_them() -> None:
    assert [format_of(each.dtype) for each in FORMATS.values()] == list(FORMATS.values())
    assert format_of(torch.bfloat16) is None
    names = [dtype_name(dtype) for dtype in (torch.int8, torch.float8_e4m3fn, torch.bfloat16)]
    assert names == ["int8", "fp8", "bfloat16"]


@by_format
@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_quantized_as_it_is_loaded(tmp_path: Path, family: Family, name: str) -> None:
    write_tiny_model(tmp_path, family)
    checkpoint = open_checkpoint(tmp_path)
    plain = load_weights(checkpoint, torch.float32, CPU)
    found = load_weights(checkpoint, torch.bfloat16, CPU, FORMATS[name])
    for expected, layer in zip(plain.layers, found.layers, strict=True):
        for matrix in ("qkv", "output", "gate_up", "down"):
            check(getattr(expected, matrix), getattr(layer, matrix), getattr(layer.scales, matrix), name)
        check_alike(expected, layer)
    tied = checkpoint.config.tied_embeddings  # then the head is made from the embedding as it is kept
    check(plain.head.bfloat16() if tied else plain.head, found.head, found.head_scale, name)
    assert torch.equal(found.embedding, plain.embedding.bfloat16())


def check(weight: torch.Tensor, values: torch.Tensor, scale: torch.Tensor | None, name: str) -> None:
    expected = quantize(weight, FORMATS[name])
    assert scale is not None
    assert torch.equal(values.view(torch.uint8), expected.values.view(torch.uint8))
    assert torch.equal(scale, expected.scale)


def check_alike(expected: LayerWeights, layer: LayerWeights) -> None:
    for vector in ("input_norm", "post_norm", "qkv_bias", "qk_norm"):
        one, other = getattr(expected, vector), getattr(layer, vector)
        assert (one is None and other is None) or torch.equal(one.to(other.dtype), other)


@by_format
@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_with_quantized_weights_is_near_the_one_without(tmp_path: Path, family: Family, name: str) -> None:
    write_tiny_model(tmp_path, family)
    checkpoint = open_checkpoint(tmp_path)
    expected = run_tokens(load_model(checkpoint, device=CPU, dtype=torch.float32), TOKENS)
    model = load_model(checkpoint, device=CPU, dtype=torch.bfloat16, quantized=FORMATS[name])
    found = run_tokens(model, TOKENS)
    error = ((found - expected).abs().mean() / expected.std()).item()
    assert 1e-4 < error < (0.05 if name == "int8" else 0.2)  # of random weights: nothing in them is redundant
    torch.testing.assert_close(run_tokens(model, TOKENS, chunks=[7, 1, 32]), found, atol=1e-3, rtol=0)
