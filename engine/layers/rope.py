"""Rotary positions: frequencies of a model, and the angles of one step.

Letters: T tokens, D head_dim.
"""

from __future__ import annotations

import math

import torch

from engine.models.config import ModelConfig, RopeScaling


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> torch.Tensor:
    """Computes the rotary frequencies, in the float32 steps `transformers` takes, so that angles agree to the bit.

    Returns:
        [D / 2] float32, radians a position.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / theta**exponents
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "factors":
        return frequencies / torch.tensor(scaling.factors, dtype=torch.float32)
    return _llama3(frequencies, scaling)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Leaves short wavelengths, stretches long ones, and blends between (Llama 3.1)."""
    turns = scaling.original_max_position / (2 * math.pi / frequencies)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


class Rotary:
    """Angles of a model's positions, worked out once a step for all layers."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._frequencies = frequencies.to(device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Computes what `engine.ops.reference.rotate` wants.

        Args:
            positions: [T] int64.

        Returns:
            cos [T, 1, D] and sin [T, 1, D] with its first half negated, float32.
        """
        angles = positions.float()[:, None, None] * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
