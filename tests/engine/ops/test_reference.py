"""Small operations mean what their papers say."""

from __future__ import annotations

import torch

from engine.ops.reference import gated_silu, head_norm, rms_norm, rotate

RANDOM = torch.Generator().manual_seed(0)


def test_rms_norm_scales_to_unit_mean_square() -> None:
    hidden, weight = torch.randn((5, 32), generator=RANDOM), torch.rand(32, generator=RANDOM)
    expected = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(rms_norm(hidden, weight, 1e-5), expected)


def test_head_norm_takes_each_head_alone_and_leaves_its_input() -> None:
    heads, weight = torch.randn((3, 4, 8), generator=RANDOM), torch.rand((4, 8), generator=RANDOM)
    before = heads.clone()
    normed = head_norm(heads, weight, 1e-6)
    for index in range(4):
        torch.testing.assert_close(normed[:, index], rms_norm(heads[:, index].contiguous(), weight[index], 1e-6))
    assert torch.equal(heads, before)
    assert head_norm(heads.bfloat16(), weight, 1e-6).dtype == torch.float32


def test_rotation_turns_pairs_of_halves_and_leaves_its_input() -> None:
    heads = torch.randn((2, 3, 8), generator=RANDOM)
    before = heads.clone()
    angles = torch.rand((2, 1, 4), generator=RANDOM)
    cos, sin = angles.cos(), angles.sin()
    rotated = rotate(heads, torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))
    turned = torch.view_as_complex(torch.stack(heads.chunk(2, -1), -1)) * torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(rotated, torch.cat((turned.real, turned.imag), -1))
    assert torch.equal(heads, before)
    quarter = torch.zeros((2, 1, 4)), torch.ones((2, 1, 4))
    assert (
        rotate(heads.bfloat16(), torch.cat((quarter[0],) * 2, -1), torch.cat((-quarter[1], quarter[1]), -1)).dtype
        == torch.float32
    )


def test_gated_silu_gates_the_second_half() -> None:
    gate_up = torch.randn((4, 12), generator=RANDOM)
    gate, up = gate_up[:, :6], gate_up[:, 6:]
    torch.testing.assert_close(gated_silu(gate_up), gate * torch.sigmoid(gate) * up)
