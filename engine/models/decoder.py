"""The decoder that all families share; what differs between them is in the configuration and thus in the weights.

Letters: T tokens of the step, R rows read out, V vocabulary, H query heads, G key/value heads, D head_dim.
Products take the weights' dtype; the residual stream, norms, rotation and logits are float32, because sums over many
layers and near ties among logits do not survive bfloat16.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine.attention.backend import AttentionStep
from engine.layers.head import LMHead
from engine.layers.rope import Rotary
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.parameters import DecoderWeights, LayerWeights, parameter_shapes
from engine.models.step import StepInputs
from engine.models.weights import load_weights
from engine.ops.reference import gated_silu, rms_norm, rotate


class Decoder:
    """A `StepModel` in plain torch, on any device.

    Attributes:
        config: What it is.
        weights: Its tensors.
        dtype: Of its matrices.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.weights = weights
        self.dtype = weights.embedding.dtype
        self._rotary = Rotary(config, weights.embedding.device)
        self._head = LMHead(weights.head)
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._num_projected = self._num_rotated + config.num_kv_heads
        self._scale = config.head_dim**-0.5

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K and V, and returns logits [R, V] float32."""
        with torch.inference_mode():
            cos, sin = self._rotary.angles(inputs.positions)
            hidden = self.weights.embedding.index_select(0, inputs.token_ids).float()
            for index, layer in enumerate(self.weights.layers):
                normed = rms_norm(hidden, layer.input_norm, self.config.norm_eps).to(self.dtype)
                hidden += self._attend(index, layer, normed, cos, sin, inputs.attention)
                normed = rms_norm(hidden, layer.post_norm, self.config.norm_eps).to(self.dtype)
                hidden += functional.linear(gated_silu(functional.linear(normed, layer.gate_up)), layer.down)
            rows = hidden.index_select(0, inputs.readout_rows)
            return self._head(rms_norm(rows, self.weights.norm, self.config.norm_eps))

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        step: AttentionStep,
    ) -> torch.Tensor:
        """Projects, rotates, stores K and V, and attends; [T, E] in and out."""
        num_heads, num_rotated = self.config.num_heads, self._num_rotated
        projected = functional.linear(normed, layer.qkv, layer.qkv_bias)
        projected = projected.view(-1, self._num_projected, self.config.head_dim)
        heads = projected[:, :num_rotated]
        if layer.qk_norm is not None:
            heads = functional.rms_norm(heads.float(), heads.shape[-1:], eps=self.config.norm_eps) * layer.qk_norm
        rotated = rotate(heads, cos, sin).to(self.dtype)
        step.storage.write(index, rotated[:, num_heads:], projected[:, num_rotated:], step.slots)
        attended = step.backend.run(
            index,
            rotated[:, :num_heads],
            step.storage,
            step.plan,
            scale=self._scale,
            sliding_window=self.config.sliding_window,
        )
        return functional.linear(attended.reshape(normed.shape[0], -1), layer.output)


def load_model(checkpoint: Checkpoint, *, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    """Loads a checkpoint's weights into a decoder.

    Raises:
        ModelLoadError: A tensor is missing, unexpected, of a wrong shape or damaged.
    """
    return Decoder(checkpoint.config, load_weights(checkpoint, dtype, torch.device(device)))


def num_parameters(model: Decoder) -> int:
    """Counts the elements of a decoder's weights, tied ones once."""
    return sum(torch.Size(shape).numel() for shape in parameter_shapes(model.config).values())
