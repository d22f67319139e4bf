"""A decoder's weights on a GPU, and the tables that its kernels read beside them.

Letters: D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.layers.rope import inverse_frequencies
from engine.models.config import ModelConfig
from engine.models.parameters import DecoderWeights, LayerWeights


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaModel:
    """Everything of a model that steps read and none writes.

    Attributes:
        config: What it is.
        weights: As loaded: matrices [outputs, inputs], those that read the same input in one.
        cos, sin: [max_position, D / 2] float32, angles of every position.
    """

    config: ModelConfig
    weights: DecoderWeights
    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, config: ModelConfig, weights: DecoderWeights) -> CudaModel:
        """Takes weights as they are, and works the angles out."""
        device = weights.embedding.device
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling).to(device)
        angles = torch.arange(config.max_position, device=device).float()[:, None] * frequencies
        return cls(config=config, weights=weights, cos=angles.cos(), sin=angles.sin())

    @property
    def dtype(self) -> torch.dtype:
        """Of the embedding, and of what products read and write."""
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.weights.embedding.device

    def norm_before(self, layer: int) -> torch.Tensor:
        """The norm [E] between a layer and what comes before it; behind the last layer the final norm."""
        layers = self.weights.layers
        return layers[layer].input_norm if layer < len(layers) else self.weights.norm

    def head_norms(self, layer: LayerWeights) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """The norms [D] of a head of q and of k, if the model has them."""
        if layer.qk_norm is None:
            return None, None
        return layer.qk_norm[0], layer.qk_norm[self.config.num_heads]
