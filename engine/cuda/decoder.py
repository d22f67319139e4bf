"""The decoder on a GPU for steps of any lanes: products of the vendor's library, our kernels between them.

Letters: T tokens of the step, L lanes, R rows read out, V vocabulary, E hidden_size, H query heads, G key/value heads,
D head_dim. Weights, activations between kernels, K and V are bfloat16 (or all float32); sums, residual stream, norms,
softmax and logits are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from engine.attention.backend import AttentionBackend, DenseBackend
from engine.attention.select import select_backend
from engine.cuda.kernels.codes import KVCodes
from engine.cuda.kernels.rows import add_norm, embed_norm, gate, rotate_store
from engine.cuda.model import CudaModel
from engine.cuda.products import exact_product, product
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.parameters import LayerWeights
from engine.models.step import StepInputs
from engine.models.weights import load_weights
from engine.ops.reference import rms_norm
from engine.quantization.formats import NumberFormat


class CudaDecoder:
    """A `StepModel` on a GPU.

    Attributes:
        config: What it is.
        model: Its weights.
        backend: Its attention kernels.
        recorded: Computes steps by graphs where it can, if that is wanted: logits, or None where it cannot.
    """

    def __init__(self, model: CudaModel, backend: AttentionBackend) -> None:
        self.config: ModelConfig = model.config
        self.model = model
        self.backend = backend
        self.recorded: Callable[[StepInputs], torch.Tensor | None] | None = None

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K, V and hidden states, and returns logits [R, V] float32."""
        if self.recorded is not None:
            logits = self.recorded(inputs)
            if logits is not None:
                return logits
        return self.compute(inputs, self.backend, self.backend.plan(inputs.layout, inputs.storage))

    def compute(self, inputs: StepInputs, backend: AttentionBackend, plan: Any, *, holes: bool = False) -> torch.Tensor:
        """Starts the kernels of a step, and waits for nothing.

        Args:
            inputs: The step; of its layout the slots alone.
            backend: Attends.
            plan: What that made of the step.
            holes: Rows whose slot is -1 are nobody's.

        Returns:
            Logits [R, V] float32.
        """
        model, config = self.model, self.config
        dense = backend if isinstance(backend, DenseBackend) else None
        attend = partial(self._attend, inputs=inputs, backend=backend, dense=dense, plan=plan, holes=holes)
        eps, weights = config.norm_eps, model.weights
        hidden, normed = embed_norm(inputs.token_ids, weights.embedding, model.norm_before(0), eps)
        for index, layer in enumerate(weights.layers):
            attended = attend(index, layer, normed)
            add_norm(hidden, product(attended, layer.output, scale=layer.scales.output), layer.post_norm, eps, normed)
            gated = self._gate(product(normed, layer.gate_up, scale=layer.scales.gate_up))
            add_norm(
                hidden, product(gated, layer.down, scale=layer.scales.down), model.norm_before(index + 1), eps, normed
            )
        if inputs.hidden is not None:
            wanted = hidden.index_select(0, inputs.hidden.rows)
            inputs.hidden.states.copy_(rms_norm(wanted, weights.norm, eps))
        read = normed.index_select(0, inputs.readout_rows)
        return exact_product(read, weights.head, scale=weights.head_scale)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        normed: torch.Tensor,
        *,
        inputs: StepInputs,
        backend: AttentionBackend,
        dense: DenseBackend | None,
        plan: Any,
        holes: bool,
    ) -> torch.Tensor:
        """Rotates, stores K and V, and attends: [T, E] to [T, H * D]."""
        config, model, storage = self.config, self.model, inputs.storage
        qkv = product(normed, layer.qkv, layer.qkv_bias, layer.scales.qkv)
        rows = None if dense is None else dense.dense_rows(plan, qkv, storage)
        query = qkv.new_empty((len(qkv), config.num_heads, config.head_dim)) if rows is None else rows.query
        rotate_store(
            qkv,
            inputs.positions,
            inputs.layout.slots,
            model.cos,
            model.sin,
            layer.qk_norm,
            config.norm_eps,
            storage.slots(index),
            query,
            KVCodes.of(storage, index),
            holes=holes,
            targets=None if rows is None else rows.targets,
            dense_key=None if rows is None else rows.key,
            dense_value=None if rows is None or rows.has_values else rows.value,
        )
        scale, window = config.head_dim**-0.5, config.sliding_window
        if dense is None or rows is None:
            attended = backend.run(index, query, storage, plan, scale=scale, sliding_window=window)
        else:
            attended = dense.run_dense(index, rows, storage, plan, scale=scale, sliding_window=window)
        return attended.reshape(len(qkv), -1)

    def _gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return gate(gate_up, gate_up.new_empty((len(gate_up), self.config.intermediate_size)))


def load_cuda(
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    attention: str = "auto",
    quantized: NumberFormat | None = None,
    quantized_kv: bool = False,
) -> CudaDecoder:
    """Loads a checkpoint's weights into a decoder for a GPU, its matrices as `quantized` or in `dtype`.

    Args:
        checkpoint: What to load.
        device: Where to.
        dtype: Of what is not quantized.
        attention: Backend.
        quantized: Format of matrices; None leaves them as they are.
        quantized_kv: The backend must read K and V that are kept as codes.

    Raises:
        ModelLoadError: A tensor is missing, unexpected, of a wrong shape or damaged, or the backend does not run there.
    """
    backend = select_backend(attention, device, quantized_kv=quantized_kv)
    weights = load_weights(checkpoint, dtype, device, quantized)
    return CudaDecoder(CudaModel.of(checkpoint.config, weights), backend)
