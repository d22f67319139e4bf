"""Random weights of the shapes of well-known models, for measuring without a download."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig, RopeScaling
from engine.models.parameters import parameter_shapes
from engine.request import GenerationDefaults

_LLAMA3 = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)
_LLAMA32 = RopeScaling(
    kind="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)

SHAPES: dict[str, ModelConfig] = {
    "smollm2-135m": ModelConfig(
        architecture="llama",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        norm_eps=1e-5,
        rope_theta=100000.0,
        tied_embeddings=True,
        bos_token_id=1,
        eos_token_ids=(2,),
    ),
    "qwen3-0.6b": ModelConfig(
        architecture="qwen3",
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        max_position=40960,
        norm_eps=1e-6,
        rope_theta=1000000.0,
        tied_embeddings=True,
        qk_norm=True,
        bos_token_id=151643,
        eos_token_ids=(151645, 151643),
    ),
    "llama-3.2-1b": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_position=131072,
        norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=_LLAMA32,
        tied_embeddings=True,
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
    ),
    "llama-3.1-8b": ModelConfig(
        architecture="llama",
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_position=131072,
        norm_eps=1e-5,
        rope_theta=500000.0,
        rope_scaling=_LLAMA3,
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
    ),
}
"""Shapes by the name given after `shape:`."""


class RandomCheckpoint:
    """Random weights as a checkpoint; see `Checkpoint`. The same seed and device give the same weights."""

    def __init__(self, shape: str | ModelConfig, seed: int = 0) -> None:
        """Takes a name from `SHAPES`, or any configuration.

        Raises:
            ModelLoadError: The name is unknown.
        """
        if isinstance(shape, str) and shape not in SHAPES:
            raise ModelLoadError(f"shape {shape!r} is unknown; known are {', '.join(sorted(SHAPES))}")
        self.config = SHAPES[shape] if isinstance(shape, str) else shape
        self.defaults = GenerationDefaults()
        self._seed = seed
        self._shapes = parameter_shapes(self.config)

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._shapes)

    def tensors(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every tensor in `dtype` on `device`; see `Checkpoint.tensors`."""
        generator = torch.Generator(device=device).manual_seed(self._seed)
        for name, shape in self._shapes.items():
            if name.endswith("norm.weight"):
                yield name, torch.ones(shape, device=device)
            else:
                # Scaled by the input width so that the residual stream neither fades nor overflows with depth.
                spread = shape[-1] ** -0.5 if len(shape) == 2 else 0.02
                tensor = torch.empty(shape, dtype=dtype, device=device)
                yield name, tensor.normal_(std=spread, generator=generator)

    def fingerprint(self) -> str:
        """Hex digest of shape and seed."""
        return hashlib.blake2b(f"random {self._seed} {self.config!r}".encode(), digest_size=16).hexdigest()

    def describe(self, name: str) -> str:
        """Where a tensor lies, for messages."""
        return f"random weights: tensor {name!r}"
