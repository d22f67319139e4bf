"""Projections give a row the same numbers in any company, and logits are never rounded."""

from __future__ import annotations

import pytest
import torch

from engine.layers.head import LMHead
from engine.layers.linear import Linear
from engine.ops.packed import can_pack


@pytest.mark.parametrize("num_rows", [0, 1, 17, 100])
def test_a_projection_is_near_the_exact_product(num_rows: int) -> None:
    random = torch.Generator().manual_seed(0)
    weight = torch.randn((96, 64), generator=random).bfloat16()
    bias = torch.randn(96, generator=random).bfloat16()
    hidden = torch.randn((num_rows, 64), generator=random)
    exact = hidden.double() @ weight.double().t() + bias.double()
    product = Linear(weight, bias)(hidden)
    assert product.shape == (num_rows, 96)
    torch.testing.assert_close(product.double(), exact, atol=1e-4 if can_pack() else 0.2, rtol=0)


@pytest.mark.skipif(not can_pack(), reason="this machine has no packed product")
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536)])
def test_a_row_is_the_same_to_the_bit_in_any_company(shape: tuple[int, int]) -> None:
    random = torch.Generator().manual_seed(1)
    linear = Linear((torch.randn(shape, generator=random) / shape[1] ** 0.5).bfloat16())
    hidden = torch.randn((70, shape[1]), generator=random)
    together = linear(hidden)
    for width in (1, 2, 7, 14, 31, 33):  # some leave one row or two over
        apart = [linear(hidden[start : start + width]) for start in range(0, len(hidden), width)]
        assert torch.equal(torch.cat(apart), together)


def test_float32_weights_are_never_packed() -> None:
    weight = torch.randn((8, 4), generator=torch.Generator().manual_seed(0)) * 1e-7
    hidden = torch.eye(4)
    assert torch.equal(Linear(weight)(hidden), weight.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32_and_not_rounded(dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn((500, 64), generator=random).to(dtype)
    hidden = torch.randn((3, 64), generator=random)
    logits = LMHead(matrix)(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits.double(), hidden.double() @ matrix.double().t(), atol=1e-4, rtol=0)
