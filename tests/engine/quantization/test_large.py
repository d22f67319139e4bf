"""Products of many rows: the same as with the dequantized matrix, or rounded no further than they say."""

from __future__ import annotations

import pytest
import torch

from engine.quantization import large
from engine.quantization.formats import FORMATS
from engine.quantization.large import LargeProduct, rounded_product
from engine.quantization.matrix import quantize

by_format = pytest.mark.parametrize("name", FORMATS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@by_format
@pytest.mark.parametrize("block_bytes", [2**28, 2 * 64 * 7])
def test_a_matrix_in_blocks_gives_what_the_whole_gives(
    name: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "_BLOCK_BYTES", block_bytes)
    matrix, hidden, bias = quantize(random(48, 64), FORMATS[name]), random(9, 64, seed=1), random(48, seed=2)
    product = LargeProduct(matrix, bias)
    expected = matrix.product(hidden, bias)
    for found, tolerance in ((product(hidden), 0.2), (product.exact(hidden), 0.1)):
        torch.testing.assert_close(found.float(), expected, atol=tolerance, rtol=0)
        assert (found.float() - expected).abs().mean() < tolerance / 8
    assert product.exact(hidden).dtype == torch.float32


@by_format
@pytest.mark.parametrize("num_rows", [1, 17, 64])
def test_rounded_rows_are_multiplied_exactly(name: str, num_rows: int) -> None:
    matrix, hidden, bias = quantize(random(48, 64), FORMATS[name]), random(num_rows, 64, seed=1), random(48, seed=2)
    hidden[0] = 0
    found = rounded_product(hidden, matrix, bias)
    rows = quantize(hidden, FORMATS[name]).dequantized()
    assert found.shape == (num_rows, 48)
    torch.testing.assert_close(found.float(), matrix.product(rows, bias), atol=0.1, rtol=0.01)
