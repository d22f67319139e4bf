"""Projections give the same numbers, narrow or wide, and logits are never rounded."""

from __future__ import annotations

import pytest
import torch

from engine.layers.head import LMHead
from engine.layers.linear import Linear
from engine.ops.packed import NARROW_ROWS


@pytest.mark.parametrize("num_rows", [0, 1, NARROW_ROWS, NARROW_ROWS + 1, 100])
@pytest.mark.parametrize("packed", [False, True])
def test_a_projection_is_near_the_exact_product_at_any_width(num_rows: int, packed: bool) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn((96, 64), generator=random).bfloat16()
    bias = torch.randn(96, generator=random).bfloat16()
    hidden = torch.randn((num_rows, 64), generator=random)
    exact = hidden.double() @ weight.double().t() + bias.double()
    product = Linear(weight, bias, packed=packed)(hidden)
    assert product.shape == (num_rows, 96)
    torch.testing.assert_close(product.double(), exact, atol=0.2, rtol=0)


def test_float32_weights_are_never_packed() -> None:
    weight = torch.randn((8, 4), generator=torch.Generator().manual_seed(0)) * 1e-7
    hidden = torch.eye(4)
    assert torch.equal(Linear(weight, packed=True)(hidden), weight.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32_and_not_rounded(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn((500, 64), generator=random).to(dtype)
    hidden = torch.randn((3, 64), generator=random)
    logits = LMHead(matrix)(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), hidden.double() @ matrix.double().t(), atol=1e-4, rtol=0)
