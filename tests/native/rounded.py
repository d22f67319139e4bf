"""What the native step computes, in plain torch and float64, rounded where the native step rounds and nowhere else.

Letters: T rows of the step, N rows of a lane, C keys of its context, H query heads, G key/value heads, D head_dim,
K inputs of a product.

bfloat16: weights, inputs of every product, keys, values, queries once they are scaled so that scores are in units of
log 2, and the probabilities that multiply values.
int8: each block of 64 inputs of a product, and of 64 weights, goes through a Walsh-Hadamard transform and is rounded
to whole multiples of a scale; attention stays bfloat16. A row's probabilities are rounded against the greatest score
of the keys before the end of their block of 64, in spans of 512; see `engine/native/src/attention_body.h`.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch.nn import functional

from engine.attention.sdpa import lane_slots
from engine.layers.rope import inverse_frequencies
from engine.models.config import ModelConfig
from engine.models.parameters import DecoderWeights, LayerWeights
from engine.models.step import StepInputs

Rounding = Literal["none", "bfloat16", "int8"]

BLOCK = 64
"""Inputs that share a scale, and keys between two looks at the greatest score."""

SPAN = 512
"""Keys that are attended to apart."""

NOTHING = -1e30
"""The greatest score of a row that has seen nothing."""


class RoundedDecoder:
    """A `StepModel` whose storage is float32 (it holds rounded values) in the order of `KVStorage`.

    Args:
        config: Shapes.
        weights: In any format; their values are what bfloat16 holds.
        rounding: What to round; `none` is the decoder itself.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, rounding: Rounding) -> None:
        self.config = config
        self._weights = weights
        self._rounding = rounding
        self._head = Product(weights.head, rounding)
        self._layers = [_Layer(config, layer, rounding) for layer in weights.layers]
        self._frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K and V, and returns logits [R, V] float32."""
        angles = inputs.positions.float()[:, None] * self._frequencies
        cos, sin = angles.cos().double()[:, None], angles.sin().double()[:, None]
        hidden = self._weights.embedding[inputs.token_ids].double()
        for index, layer in enumerate(self._layers):
            hidden = layer.forward(hidden, cos, sin, inputs, index)
        rows = hidden[inputs.readout_rows]
        return self._head(_norm(rows, self._weights.norm, self.config.norm_eps)).float()


class Product:
    """Inputs [N, K] times weights [M, K], both rounded."""

    def __init__(self, weights: torch.Tensor, rounding: Rounding) -> None:
        self._rounding = rounding
        self._weights = weights.double()
        if rounding == "int8":
            self._whole, self._scales = _whole_weights(_rotated_blocks(self._weights))

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._rounding != "int8":
            return (inputs if self._rounding == "none" else _bfloat16(inputs)) @ self._weights.T
        blocks = _rotated_blocks(inputs.float().double())
        peaks = blocks.abs().amax(-1, keepdim=True)
        whole = torch.where(peaks > 0, blocks * (127 / peaks), 0.0).round()
        sums = torch.einsum("nbk,mbk->nmb", whole, self._whole)
        return torch.einsum("nmb,nb,mb->nm", sums, peaks[..., 0] / 127, self._scales)


def _rotated_blocks(matrix: torch.Tensor) -> torch.Tensor:
    """Pads [N, K] to whole blocks and transforms each: [N, blocks, 64]."""
    padded = functional.pad(matrix, (0, -matrix.shape[1] % BLOCK))
    hadamard = torch.ones((1, 1), dtype=torch.float64)
    for _ in range(6):
        hadamard = torch.cat((torch.cat((hadamard, hadamard), 1), torch.cat((hadamard, -hadamard), 1)))
    return padded.view(matrix.shape[0], -1, BLOCK) @ hadamard


def _whole_weights(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds [M, blocks, 64] to whole multiples of a bfloat16 scale; returns them and the scale over 64, [M, blocks].

    The transform on both sides makes products 64 times as large. Division is by a float32 inverse, as weights have few
    enough bits that halves occur.
    """
    peaks = blocks.abs().amax(-1)
    scales = _bfloat16_above(peaks / 127)
    inverse = 1.0 / scales.float()[..., None]
    whole = torch.where(peaks[..., None] > 0, blocks.float() * inverse, 0.0).round()
    return whole.double(), _bfloat16_above(scales / BLOCK)


def _bfloat16_above(values: torch.Tensor) -> torch.Tensor:
    """The least bfloat16 not below non-negative values."""
    bits = values.float().view(torch.int32)
    return ((bits + 0xFFFF) >> 16 << 16).view(torch.float32).double()


def _bfloat16(values: torch.Tensor) -> torch.Tensor:
    return values.float().to(torch.bfloat16).double()


def _norm(rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


class _Layer:
    def __init__(self, config: ModelConfig, weights: LayerWeights, rounding: Rounding) -> None:
        self._config = config
        self._weights = weights
        self._rounds = rounding != "none"
        self._qkv, self._output = Product(weights.qkv, rounding), Product(weights.output, rounding)
        self._gate_up, self._down = Product(weights.gate_up, rounding), Product(weights.down, rounding)

    def forward(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inputs: StepInputs, index: int
    ) -> torch.Tensor:
        """[T, E] to [T, E]."""
        weights, eps = self._weights, self._config.norm_eps
        attended = self._attend(_norm(hidden, weights.input_norm, eps), cos, sin, inputs, index)
        hidden = hidden + self._output(attended)
        gate, up = self._gate_up(_norm(hidden, weights.post_norm, eps)).chunk(2, -1)
        return hidden + self._down(functional.silu(gate) * up)

    def _attend(
        self, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, inputs: StepInputs, index: int
    ) -> torch.Tensor:
        config, weights, layout = self._config, self._weights, inputs.layout
        projected = self._qkv(normed)
        if weights.qkv_bias is not None:
            projected = projected + weights.qkv_bias.double()
        heads = projected.view(len(normed), -1, config.head_dim)
        num_rotated = config.num_heads + config.num_kv_heads
        rotated, values = heads[:, :num_rotated], heads[:, num_rotated:]
        if weights.qk_norm is not None:
            rotated = _norm(rotated, weights.qk_norm, config.norm_eps)
        first, second = rotated.chunk(2, -1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        queries = self._round(rotated[:, : config.num_heads] * (config.head_dim**-0.5 / math.log(2)))
        slots = inputs.storage.slots(index)
        slots[0, layout.slots] = self._round(rotated[:, config.num_heads :]).float()
        slots[1, layout.slots] = self._round(values).float()
        outputs = []
        for lane, context in enumerate(layout.context_lens):
            rows = slice(layout.query_starts[lane], layout.query_starts[lane + 1])
            own = lane_slots(layout.block_tables[lane], context, inputs.storage.page_size)
            mask = layout.masks[lane] if layout.masks else None
            keys, seen = slots[:, own].double()
            outputs.append(self._softmax(queries[rows], keys, seen, self._visible(rows, context, mask)))
        return torch.cat(outputs).flatten(1)

    def _visible(self, rows: slice, context: int, mask: torch.Tensor | None) -> torch.Tensor:
        """What each row sees, [N, C] bool."""
        if mask is not None:
            return mask
        num_rows = rows.stop - rows.start
        distance = (context - num_rows + torch.arange(num_rows))[:, None] - torch.arange(context)
        window = self._config.sliding_window or context
        return torch.logical_and(distance >= 0, distance < window)

    def _softmax(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Queries [N, H, D] over keys and values [C, G, D]: [N, H, D]; a row that sees nothing gives zeros."""
        num_rows, num_heads, head_dim = queries.shape
        grouped = queries.view(num_rows, keys.shape[1], -1, head_dim)
        seen = visible[:, None, None]
        scores = torch.einsum("ngrd,cgd->ngrc", grouped, keys).masked_fill(~seen, NOTHING)
        values = values.masked_fill(~visible.any(0)[:, None, None], 0.0)
        peak, weight, output = _nothing(grouped)
        for start in range(0, len(keys), SPAN):
            end = min(start + SPAN, len(keys))
            span = self._span(scores[..., start:end], seen[..., start:end], values[start:end], grouped)
            peak, weight, output = _merge((peak, weight, output), span)
        return torch.where(weight > 0, output / weight, 0.0).reshape(num_rows, num_heads, head_dim)

    def _span(
        self, scores: torch.Tensor, seen: torch.Tensor, values: torch.Tensor, grouped: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        peak, weight, output = _nothing(grouped)
        for start in range(0, len(values), BLOCK):
            block = slice(start, start + BLOCK)
            after = torch.maximum(peak, scores[..., block].amax(-1, keepdim=True))
            weights = torch.exp2(scores[..., block] - after) * seen[..., block]
            alpha = torch.exp2(peak - after)
            weight = weight * alpha + weights.sum(-1, keepdim=True)
            output = output * alpha + torch.einsum("ngrc,cgd->ngrd", self._round(weights), values[block])
            peak = after
        return peak, weight, output

    def _round(self, values: torch.Tensor) -> torch.Tensor:
        return _bfloat16(values) if self._rounds else values


def _nothing(grouped: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Greatest score, sum of weights and output of rows that saw nothing."""
    weight = torch.zeros_like(grouped[..., :1])
    return weight + NOTHING, weight, torch.zeros_like(grouped)


def _merge(
    one: tuple[torch.Tensor, torch.Tensor, torch.Tensor], other: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    peak = torch.maximum(one[0], other[0])
    first, second = torch.exp2(one[0] - peak), torch.exp2(other[0] - peak)
    return peak, one[1] * first + other[1] * second, one[2] * first + other[2] * second
