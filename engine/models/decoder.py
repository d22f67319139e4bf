"""The decoder that all families share; what differs between them is in the configuration and thus in the weights.

Letters: T tokens of the step, R rows read out, V vocabulary, H query heads, G key/value heads, D head_dim.
Products take what suits the machine (`engine.layers.linear`); the residual stream, norms, rotation and logits are
float32, because sums over many layers and near ties among logits do not survive bfloat16.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from engine.adapters.batch import adapter_rows
from engine.adapters.changes import Adapter, AdapterRows
from engine.adapters.projections import Site
from engine.adapters.shelf import AdapterShelf
from engine.attention.backend import AttentionBackend, AttentionStep
from engine.attention.select import select_backend
from engine.layers.head import LMHead
from engine.layers.linear import Linear
from engine.layers.rope import Rotary
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.parameters import DecoderWeights, LayerWeights, parameter_shapes
from engine.models.step import StepInputs, StepModel
from engine.models.weights import load_weights
from engine.ops.reference import gated_silu, head_norm, rms_norm, rotate
from engine.quantization.formats import NumberFormat


class Decoder:
    """A `StepModel` in plain torch, on any device.

    Attributes:
        config: What it is.
        device: Where it runs.
        backend: Its attention kernels.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        backend: AttentionBackend,
        adapters: Sequence[Adapter] | AdapterShelf = (),
    ) -> None:
        """Takes weights over: their list of layers is empty afterwards, each freed once its products are made."""
        self.config = config
        self.device = weights.embedding.device
        self.backend = backend
        self._embedding = weights.embedding
        self._norm = weights.norm
        weights.layers.reverse()
        self._layers = [_Layer(config, index, weights.layers.pop()) for index in range(config.num_layers)]
        self._rotary = Rotary(config, weights.embedding.device)
        self._head = LMHead(weights.head, weights.head_scale)
        self._adapters = adapters

    def over(self, backend: AttentionBackend) -> Decoder:
        """The same weights with other attention kernels."""
        other = copy.copy(self)
        other.backend = backend
        return other

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K, V and hidden states, and returns logits [R, V] float32."""
        attention = AttentionStep(
            backend=self.backend,
            plan=self.backend.plan(inputs.layout, inputs.storage),
            storage=inputs.storage,
            slots=inputs.layout.slots,
        )
        with torch.inference_mode():
            hidden = self.go_through(inputs, attention)
            if inputs.hidden is not None:
                inputs.hidden.states.copy_(self._read(hidden, inputs.hidden.rows))
            return self._head(self._read(hidden, inputs.readout_rows))

    def go_through(self, inputs: StepInputs, attention: AttentionStep) -> torch.Tensor:
        """The residual stream [T, E] float32 behind all layers, which attend as they are told."""
        cos, sin = self._rotary.angles(inputs.positions)
        hidden = self._embedding.index_select(0, inputs.token_ids).float()
        adapted = adapter_rows(self._adapters, inputs) if inputs.adapters else ()
        for layer in self._layers:
            layer.forward(hidden, cos, sin, attention, adapted)
        return hidden

    def _read(self, hidden: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """What the final norm makes of some rows of the residual stream."""
        return rms_norm(hidden.index_select(0, rows), self._norm, self.config.norm_eps)


class _Layer:
    """One layer with its products chosen."""

    def __init__(self, config: ModelConfig, index: int, weights: LayerWeights) -> None:
        self._config = config
        self._index = index
        self._input_norm, self._post_norm, self._qk_norm = weights.input_norm, weights.post_norm, weights.qk_norm
        scales = weights.scales
        self._qkv = Linear(weights.qkv, weights.qkv_bias, scales.qkv)
        self._output = Linear(weights.output, scale=scales.output)
        self._gate_up = Linear(weights.gate_up, scale=scales.gate_up)
        self._down = Linear(weights.down, scale=scales.down)
        self._num_rotated = config.num_heads + config.num_kv_heads
        self._num_projected = self._num_rotated + config.num_kv_heads
        self._scale = config.head_dim**-0.5

    def forward(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        step: AttentionStep,
        adapted: Sequence[AdapterRows],
    ) -> None:
        """Adds what the layer makes of the residual stream hidden [T, E] float32 to it, in place."""
        eps = self._config.norm_eps
        projected = self._product("qkv", self._qkv, rms_norm(hidden, self._input_norm, eps), adapted)
        hidden += self._product("o", self._output, self._attend(projected, cos, sin, step), adapted)
        gate_up = self._product("gate_up", self._gate_up, rms_norm(hidden, self._post_norm, eps), adapted)
        hidden += self._product("down", self._down, gated_silu(gate_up), adapted)

    def _product(
        self, site: Site, product: Linear, inputs: torch.Tensor, adapted: Sequence[AdapterRows]
    ) -> torch.Tensor:
        """A product and what adapters make of some of its rows."""
        outputs = product(inputs)
        for rows in adapted:
            rows.change(self._index, site, product, inputs, outputs)
        return outputs

    def _attend(
        self, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: AttentionStep
    ) -> torch.Tensor:
        """Rotates, stores K and V, and attends: [T, (H + 2G) * D] to [T, H * D]."""
        config, num_rotated, storage = self._config, self._num_rotated, step.storage
        projected = projected.view(-1, self._num_projected, config.head_dim)
        heads = projected[:, :num_rotated]
        if self._qk_norm is not None:
            heads = head_norm(heads, self._qk_norm, config.norm_eps)
        rotated = rotate(heads, cos, sin).to(storage.read_dtype)
        if step.writes:
            storage.write(self._index, rotated[:, config.num_heads :], projected[:, num_rotated:], step.slots)
        query = rotated[:, : config.num_heads]
        attended = step.backend.run(
            self._index, query, storage, step.plan, scale=self._scale, sliding_window=config.sliding_window
        )
        return attended.reshape(len(projected), -1)


def load_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    attention: str = "auto",
    adapters: Sequence[Adapter] | AdapterShelf = (),
    quantized: NumberFormat | None = None,
    quantized_kv: bool = False,
) -> Decoder:
    """Loads a checkpoint's weights into a decoder with the attention backend of that name, beside it some adapters.

    Args:
        checkpoint: Where weights come from.
        device: Where they go.
        dtype: Of the weights, or of what is not quantized of them.
        attention: Name of the backend, or `auto`.
        adapters: Loaded for the same model.
        quantized: Format of matrices that are multiplied by; None for `dtype`.
        quantized_kv: The backend must read K and V that are kept as codes.

    Raises:
        ModelLoadError: A tensor is missing, unexpected, of a wrong shape or damaged, or the backend does not run there.
    """
    backend = select_backend(attention, device, quantized_kv=quantized_kv)
    weights = load_weights(checkpoint, dtype, torch.device(device), quantized)
    return Decoder(checkpoint.config, weights, backend, adapters)


def num_parameters(model: StepModel) -> int:
    """Counts the elements of a model's weights, tied ones once."""
    return sum(torch.Size(shape).numel() for shape in parameter_shapes(model.config).values())
