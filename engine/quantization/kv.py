"""K and V with a scale a token and head, and what is done to keys before.

Letters: T tokens, L layers, G key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.quantization.formats import NumberFormat

SCALE_DTYPE = torch.bfloat16
"""Of a token's scale. Codes are made with the scale as it is stored, so that its rounding costs nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class KeySmoothing:
    """What is taken out of keys before they are rounded: a mean and a scale a channel.

    Attributes:
        mean: [L, G, D] float32.
        scale: [L, G, D] float32, positive.
    """

    mean: torch.Tensor
    scale: torch.Tensor

    @classmethod
    def none(cls, num_layers: int, num_kv_heads: int, head_dim: int, device: torch.device) -> KeySmoothing:
        """Memory for it that leaves keys as they are."""
        shape = (num_layers, num_kv_heads, head_dim)
        return cls(torch.zeros(shape, device=device), torch.ones(shape, device=device))

    def smooth(self, layer: int, keys: torch.Tensor) -> torch.Tensor:
        """[T, G, D] to the same in float32."""
        return (keys.float() - self.mean[layer]) / self.scale[layer]

    def restore(self, layer: int, keys: torch.Tensor) -> torch.Tensor:
        """The other way round: [T, G, D] float32."""
        return keys * self.scale[layer] + self.mean[layer]


def encode(values: torch.Tensor, number_format: NumberFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds tokens.

    Args:
        values: [T, G, D] of any float dtype.
        number_format: Of the codes.

    Returns:
        Codes [T, G, D], and scales [T, G] bfloat16.
    """
    values = values.float()
    scales = (values.abs().amax(-1) / number_format.most).to(SCALE_DTYPE)
    return number_format.codes(values, scales[..., None].float()), scales


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What codes [..., D] and scales [...] stand for, float32."""
    return codes.float() * scales[..., None].float()
