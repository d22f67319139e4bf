"""A decoder whose whole step is one native call; it computes what `engine.models.decoder.Decoder` does.

Matrices are bfloat16 or int8, their inputs are rounded to the same format, sums, residual stream, norms, softmax and
logits are float32, K and V are bfloat16. A row's result is the same to the bit whatever shares its step, however its
prompt was cut, and on any number of threads.

Letters: T tokens of the step, L lanes, R rows read out, Q rows given out, V vocabulary, E hidden_size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import ModelLoadError
from engine.kv.storage import KVStorage
from engine.layers.rope import inverse_frequencies
from engine.models.checkpoint import Checkpoint
from engine.models.config import ModelConfig
from engine.models.parameters import DecoderWeights, LayerWeights
from engine.models.step import StepInputs
from engine.models.weights import load_weights
from engine.native.library import native_module, native_status
from engine.native.shape import dimensions

_MATRICES = ("qkv", "output", "gate_up", "down")
"""A layer's matrices in the order of `MatrixKind` in src/model.h; the head comes after them."""

_VECTORS = ("input_norm", "post_norm", "qk_norm", "qkv_bias")
"""A layer's vectors in the order of `VectorKind`; the final norm and the rotary frequencies come after them."""

_HEAD = len(_MATRICES)
_FINAL_NORM, _FREQUENCIES = len(_VECTORS), len(_VECTORS) + 1


class NativeDecoder:
    """A `StepModel` on the CPU.

    Attributes:
        config: What it is.
        form: Name of the kernels in use, as `native_status` lists them.
        team: Its threads, for other native calls between steps.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, *, num_threads: int, int8: bool = False) -> None:
        """Takes weights over: their list of layers is empty afterwards, each freed once it is laid out in tiles.

        Args:
            config: Shapes.
            weights: Matrices in bfloat16 on the CPU.
            num_threads: Threads of a step, the caller's included.
            int8: Keep matrices as int8 with a scale for every 64 inputs.

        Raises:
            ModelLoadError: The native step is not available, or cannot take this shape or these weights.
        """
        status = native_status()
        module = native_module()
        if module is None or status.form is None:
            raise ModelLoadError(f"the native step is not available: {status.reason}")
        if weights.embedding.dtype != torch.bfloat16:
            raise ModelLoadError(f"the native step takes bfloat16 weights, got {weights.embedding.dtype}")
        self.config = config
        self.form = status.form
        self._native: ModuleType = module
        try:
            self.team: Any = module.new_team(num_threads)
            self._model = module.new_model(self.team, status.form, int8, dimensions(config), config.norm_eps)
            self._load(weights)
        except ValueError as error:
            raise ModelLoadError(f"the native step cannot take this model: {error}") from None
        self._storage: KVStorage | None = None
        self._stepper: Any = None

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Computes the step, writing K, V and hidden states, and returns logits [R, V] float32.

        Raises:
            ValueError: A table points outside of what it may; nothing was written.
        """
        if inputs.storage is not self._storage:
            self._join(inputs.storage)
        layout = inputs.layout
        tables = layout.tables
        logits = torch.empty((len(inputs.readout_rows), self.config.vocab_size), dtype=torch.float32)
        self._native.step(
            self._stepper,
            inputs.token_ids.numpy(),
            inputs.positions.numpy(),
            layout.slots.numpy(),
            tables.query_starts,
            tables.context_lens,
            tables.table_starts,
            tables.pages,
            [None if mask is None else _bytes(mask) for mask in layout.masks] if layout.masks else None,
            inputs.readout_rows.numpy(),
            logits.numpy(),
            *_hidden(inputs),
        )
        return logits

    def _join(self, storage: KVStorage) -> None:
        """Stands the model on a pool of pages."""
        if storage.dtype != torch.bfloat16 or storage.device.type != "cpu":
            raise ValueError(f"the native step keeps K and V in bfloat16 on the CPU, got {storage.dtype}")
        layers = [_bits(layer) for layer in storage.layers]
        self._stepper = self._native.new_stepper(self._model, layers, storage.num_pages, storage.page_size)
        self._storage = storage

    def _load(self, weights: DecoderWeights) -> None:
        model, native = self._model, self._native
        native.set_embedding(model, _bits(weights.embedding))
        native.set_matrix(model, _HEAD, 0, _bits(weights.head))
        native.set_vector(model, _FINAL_NORM, 0, weights.norm.numpy())
        config = self.config
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        native.set_vector(model, _FREQUENCIES, 0, frequencies.numpy())
        weights.layers.reverse()
        for index in range(config.num_layers):
            self._load_layer(index, weights.layers.pop())

    def _load_layer(self, index: int, layer: LayerWeights) -> None:
        set_matrix: Callable[..., None] = self._native.set_matrix
        for kind, name in enumerate(_MATRICES):
            set_matrix(self._model, kind, index, _bits(getattr(layer, name)))
        for kind, name in enumerate(_VECTORS):
            vector: torch.Tensor | None = getattr(layer, name)
            if vector is not None:
                self._native.set_vector(self._model, kind, index, vector.float().contiguous().numpy())


def load_native(checkpoint: Checkpoint, *, num_threads: int, int8: bool = False) -> NativeDecoder:
    """Loads a checkpoint's weights into a native decoder.

    Raises:
        ModelLoadError: A tensor is missing, unexpected, of a wrong shape or damaged, or the step cannot run here.
    """
    weights = load_weights(checkpoint, torch.bfloat16, torch.device("cpu"))
    return NativeDecoder(checkpoint.config, weights, num_threads=num_threads, int8=int8)


def _hidden(inputs: StepInputs) -> Sequence[npt.NDArray[Any]]:
    """Rows [Q] and where their hidden states go [Q, E], if any are wanted."""
    wanted = inputs.hidden
    return () if wanted is None else (wanted.rows.numpy(), wanted.states.numpy())


def _bits(tensor: torch.Tensor) -> npt.NDArray[np.int16]:
    """The memory of a contiguous bfloat16 tensor, for which numpy has no type."""
    found: npt.NDArray[np.int16] = tensor.view(torch.int16).numpy()
    return found


def _bytes(mask: torch.Tensor) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = mask.contiguous().view(torch.uint8).numpy()
    return found
