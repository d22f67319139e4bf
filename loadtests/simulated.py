"""Number formats tried out in float32: what a format would cost in quality, before or without a fast form of it.

Letters: T tokens, R rows, N outputs, K inputs, E hidden_size, H query heads, G key/value heads, D head_dim, V words.
Weights and the inputs of products are rounded to what the format can hold and multiplied in float32. The residual
stream, norms, softmax and logits stay float32, K and V are rounded to bfloat16, as in the native step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.attention.backend import AttentionStep
from engine.attention.select import select_backend
from engine.layers.rope import Rotary
from engine.models.config import ModelConfig
from engine.models.parameters import DecoderWeights, LayerWeights
from engine.models.step import StepInputs
from engine.ops.reference import gated_silu, head_norm, rms_norm, rotate
from engine.quantization.formats import FORMATS
from engine.quantization.matrix import quantize

Rounding = Callable[[torch.Tensor], torch.Tensor]
"""float32 [R, K] to float32 [R, K] of fewer values."""

_INT8_MOST = 127.0


def bfloat16(values: torch.Tensor) -> torch.Tensor:
    """The nearest bfloat16 of each value."""
    return values.bfloat16().float()


def int8(block: int | None, scale: torch.dtype = torch.float32) -> Rounding:
    """Whole numbers of -127..127 times one scale a block of K, the largest magnitude of the block over 127.

    Args:
        block: Values that share a scale, the last ones of a row perhaps fewer; None is a whole row.
        scale: Format in which scales are kept.
    """

    def rounding(values: torch.Tensor) -> torch.Tensor:
        num_rows, num_inputs = values.shape
        size = block or num_inputs
        blocks = functional.pad(values, (0, -num_inputs % size)).view(num_rows, -1, size)
        scales = (blocks.abs().amax(-1, keepdim=True) / _INT8_MOST).to(scale).float()
        safe = torch.where(scales > 0, scales, 1.0)
        rounded = (blocks / safe).round_().clamp_(-_INT8_MOST, _INT8_MOST) * scales
        return rounded.view(num_rows, -1)[:, :num_inputs]

    return rounding


def fp8(values: torch.Tensor) -> torch.Tensor:
    """Numbers of float8 e4m3 times one scale a row, the largest magnitude of the row over 448."""
    return quantize(values, FORMATS["fp8"]).dequantized()


def rotated(rounding: Rounding, block: int) -> Rounding:
    """Rounds what a Walsh-Hadamard transform makes of each block of K, and transforms back (QuaRot, arXiv 2404.00456).

    Applied to weights and inputs it leaves exact products as they are, and spreads a value that is far larger than the
    rest of its block over the whole block, so that the block's scale suits all of it.

    Args:
        rounding: Applied to the transformed values.
        block: Values of a transform, a power of two; a row's last block is filled up with zeros.
    """
    matrix = _hadamard(block)

    def transformed(values: torch.Tensor) -> torch.Tensor:
        return (values.reshape(-1, block) @ matrix).view_as(values)

    def whole(values: torch.Tensor) -> torch.Tensor:
        num_inputs = values.shape[1]
        padded = functional.pad(values, (0, -num_inputs % block))
        return transformed(rounding(transformed(padded)))[:, :num_inputs]

    return whole


def _hadamard(size: int) -> torch.Tensor:
    """The symmetric orthonormal [size, size] matrix of +1 and -1 over sqrt(size)."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """A number format.

    Attributes:
        weights: Of matrices, the head included, along their inputs.
        inputs: Of what is multiplied by a matrix.
        embedding: Of the rows that tokens are looked up in.
    """

    weights: Rounding
    inputs: Rounding
    embedding: Rounding = bfloat16


class SimulatedDecoder:
    """A `StepModel` on the CPU whose products take rounded numbers; wants a float32 storage.

    Attributes:
        config: What it is.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, numbers: Numbers) -> None:
        """Rounds weights, which must be float32 and are taken over."""
        self.config = config
        self._numbers = numbers
        self._backend = select_backend("cpu", "cpu")
        self._rotary = Rotary(config, torch.device("cpu"))
        self._norm = weights.norm
        self._embedding = numbers.embedding(weights.embedding)
        self._head = numbers.weights(weights.head)
        self._layers = weights.layers
        for layer in self._layers:
            for name in ("qkv", "output", "gate_up", "down"):
                setattr(layer, name, numbers.weights(getattr(layer, name)))

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K and V, and returns logits [R, V] float32."""
        storage = inputs.storage
        step = AttentionStep(
            backend=self._backend,
            plan=self._backend.plan(inputs.layout, storage),
            storage=storage,
            slots=inputs.layout.slots,
        )
        with torch.inference_mode():
            cos, sin = self._rotary.angles(inputs.positions)
            hidden = self._embedding.index_select(0, inputs.token_ids)
            for index, layer in enumerate(self._layers):
                normed = rms_norm(hidden, layer.input_norm, self.config.norm_eps)
                hidden = hidden + self._product(self._attend(index, layer, normed, cos, sin, step), layer.output)
                normed = rms_norm(hidden, layer.post_norm, self.config.norm_eps)
                hidden = hidden + self._product(gated_silu(self._product(normed, layer.gate_up)), layer.down)
            rows = hidden.index_select(0, inputs.readout_rows)
            return self._product(rms_norm(rows, self._norm, self.config.norm_eps), self._head)

    def _product(self, hidden: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[T, K] times [N, K]: [T, N]."""
        return functional.linear(self._numbers.inputs(hidden), matrix, bias)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        step: AttentionStep,
    ) -> torch.Tensor:
        """Projects, rotates, stores K and V, and attends: [T, E] to [T, H * D]."""
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        projected = self._product(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, config.head_dim)
        heads = projected[:, :num_rotated]
        if layer.qk_norm is not None:
            heads = head_norm(heads, layer.qk_norm, config.norm_eps)
        rotated = bfloat16(rotate(heads, cos, sin))
        step.storage.write(index, rotated[:, config.num_heads :], bfloat16(projected[:, num_rotated:]), step.slots)
        attended = step.backend.run(
            index,
            rotated[:, : config.num_heads],
            step.storage,
            step.plan,
            scale=config.head_dim**-0.5,
            sliding_window=config.sliding_window,
        )
        return attended.reshape(len(normed), -1)
