"""The packed product keeps the weights it is given, or is not used."""

from __future__ import annotations

import pytest
import torch

from engine.ops.packed import can_pack, pack

needs_packing = pytest.mark.skipif(not can_pack(), reason="this processor has no packed float16 product")


@needs_packing
def test_bfloat16_weights_survive_packing() -> None:
    matrix = torch.randn((64, 32), generator=torch.Generator().manual_seed(0)).bfloat16()
    packed = pack(matrix, torch.arange(64.0))
    assert packed is not None
    product = packed(torch.eye(32))
    assert torch.equal(product, (matrix.float() + torch.arange(64.0)[:, None]).t())


@needs_packing
def test_the_smallest_weights_lose_next_to_nothing() -> None:
    matrix = torch.logspace(-12, -3, 64).view(2, 32).bfloat16()
    packed = pack(matrix)
    assert packed is not None
    assert (packed(torch.eye(32)).t() - matrix.float()).abs().max() <= 2**-25


def test_weights_beyond_float16_are_not_packed() -> None:
    matrix = torch.ones((4, 4), dtype=torch.bfloat16)
    matrix[1, 2] = 1e5
    assert pack(matrix) is None
