"""Rotary frequencies and angles are those of `transformers`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.layers.rope import Rotary, inverse_frequencies
from engine.models.config import RopeScaling
from engine.models.shapes import SHAPES
from engine.ops.reference import rotate

SCALINGS = {
    "default": None,
    "linear": RopeScaling(kind="linear", factor=4.0),
    "llama3": RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    ),
}


def reference(kind: str, scaling: RopeScaling | None) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 500000.0}
    if scaling is not None:
        parameters["factor"] = scaling.factor
    if scaling is not None and kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=2, max_position_embeddings=131072, rope_parameters=parameters
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("kind", SCALINGS)
def test_frequencies_equal_those_of_transformers(kind: str) -> None:
    expected = reference(kind, SCALINGS[kind]).inv_freq
    torch.testing.assert_close(inverse_frequencies(128, 500000.0, SCALINGS[kind]), expected, rtol=1e-6, atol=0)


def test_given_factors_divide_the_frequencies() -> None:
    factors = tuple(float(index + 1) for index in range(8))
    scaled = inverse_frequencies(16, 10000.0, RopeScaling(kind="factors", factors=factors))
    torch.testing.assert_close(scaled * torch.tensor(factors), inverse_frequencies(16, 10000.0, None))


@pytest.mark.parametrize("kind", SCALINGS)
def test_rotation_equals_that_of_transformers_at_far_positions(kind: str) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    positions = torch.tensor([0, 1, 77, 8191, 100000])
    heads = torch.randn((5, 6, 128), generator=torch.Generator().manual_seed(0))
    cos, sin = reference(kind, SCALINGS[kind])(heads, positions[None])
    expected, _ = apply_rotary_pos_emb(heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos, sin)
    config = replace(SHAPES["llama-3.1-8b"], rope_scaling=SCALINGS[kind])
    rotated = rotate(heads, *Rotary(config, torch.device("cpu")).angles(positions))
    # One unit in the last place of a frequency is a hundredth of a radian at position 100,000.
    torch.testing.assert_close(rotated, expected[0].transpose(0, 1), atol=0.05, rtol=0)
    torch.testing.assert_close(rotated[:3], expected[0].transpose(0, 1)[:3], atol=1e-4, rtol=0)
