"""Small random decoders over the whole width of the supported families.

Letters: E hidden_size, I intermediate_size, V vocabulary, H query heads, G key/value heads, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch

from engine.models.config import ModelConfig, RopeScaling
from engine.models.parameters import DecoderWeights, LayerWeights, allocate

_LLAMA3 = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64)


def _shape(heads: int, kv_heads: int, head_dim: int, hidden: int, inner: int, vocab: int, **more: Any) -> ModelConfig:
    fields: dict[str, Any] = {
        "architecture": "llama",
        "num_layers": 2,
        "max_position": 1 << 20,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
    }
    return ModelConfig(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        intermediate_size=inner,
        vocab_size=vocab,
        **(fields | more),
    )


SHAPES: dict[str, ModelConfig] = {
    "smol": _shape(6, 2, 32, 96, 160, 144, tied_embeddings=True),
    "plain": _shape(4, 4, 16, 64, 128, 128),
    "eight": _shape(2, 1, 8, 24, 33, 37, tied_embeddings=True),
    "odd_sizes": _shape(4, 2, 24, 50, 70, 101),
    "one_of_all": _shape(1, 1, 2, 1, 1, 3),
    "wide_inner": _shape(2, 2, 16, 40, 513, 77),
    "group_of_eight": _shape(8, 1, 64, 128, 192, 96),
    "group_of_seven": _shape(7, 1, 16, 112, 96, 130, architecture="qwen2", attention_bias=True),
    "group_of_three": _shape(6, 2, 80, 72, 100, 63, rope_scaling=RopeScaling(kind="linear", factor=4.0)),
    "group_of_32": _shape(32, 1, 16, 66, 65, 64),
    "ninety_six": _shape(4, 1, 96, 80, 48, 81, rope_theta=1e6),
    "normed": _shape(4, 2, 128, 64, 96, 100, architecture="qwen3", qk_norm=True, norm_eps=1e-6, tied_embeddings=True),
    "normed_small": _shape(4, 2, 24, 64, 96, 100, architecture="qwen3", qk_norm=True, norm_eps=1e-6),
    "biased": _shape(4, 2, 64, 56, 90, 95, architecture="qwen2", attention_bias=True, rope_theta=1e6),
    "biased_small": _shape(3, 3, 8, 20, 17, 19, architecture="qwen2", attention_bias=True),
    "window": _shape(8, 2, 16, 48, 80, 111, architecture="mistral", sliding_window=24),
    "window_of_one": _shape(2, 1, 24, 48, 80, 111, architecture="mistral", sliding_window=1),
    "llama3": _shape(4, 2, 64, 64, 96, 90, rope_scaling=_LLAMA3, rope_theta=5e5),
    "factors": _shape(
        2, 2, 16, 32, 64, 50, rope_scaling=RopeScaling(kind="factors", factors=(1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0))
    ),
    "large_heads": _shape(2, 1, 256, 80, 64, 48),
    "largest_heads": _shape(2, 1, 512, 64, 64, 33),
    "everything": _shape(
        6,
        3,
        40,
        90,
        150,
        205,
        architecture="qwen3",
        qk_norm=True,
        attention_bias=True,
        sliding_window=33,
        rope_scaling=_LLAMA3,
        num_layers=3,
    ),
}
"""By name. GQA ratios 1, 2, 3, 4, 7, 8 and 32; heads of 2 to 512; sizes that no tile divides."""


def random_weights(config: ModelConfig, dtype: torch.dtype = torch.bfloat16, *, seed: int = 0) -> DecoderWeights:
    """Random weights that bfloat16 holds exactly, in any format; wide enough that heads attend to some keys more."""
    random = torch.Generator().manual_seed(seed)

    def fill(tensor: torch.Tensor | None, scale: float, mean: float = 0.0) -> None:
        if tensor is not None:
            values = torch.randn(tensor.shape, generator=random) * scale + mean
            tensor.copy_(values.to(torch.bfloat16))

    weights = allocate(config, dtype, torch.device("cpu"))
    fill(weights.embedding, 1.0)
    for layer in weights.layers:
        _fill_layer(layer, fill)
    fill(weights.norm, 0.2, 1.0)
    if weights.head is not weights.embedding:
        fill(weights.head, 1.5 * config.hidden_size**-0.5)
    return weights


def _fill_layer(layer: LayerWeights, fill: Any) -> None:
    for norm in (layer.input_norm, layer.post_norm, layer.qk_norm):
        fill(norm, 0.2, 1.0)
    fill(layer.qkv_bias, 0.5)
    for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down):
        fill(matrix, 1.5 * matrix.shape[1] ** -0.5)
