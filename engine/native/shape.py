"""Which models the native step can compute."""

from __future__ import annotations

from engine.models.config import ModelConfig
from engine.native.library import native_module


def dimensions(config: ModelConfig) -> tuple[int, ...]:
    """A model's shape as native functions take it; see `Dimensions` in src/model.h."""
    return (
        config.num_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.vocab_size,
        config.sliding_window or 0,
    )


def shape_refusal(config: ModelConfig) -> str | None:
    """Why the native step cannot take a model of this shape; None if it can, or is not here to be asked."""
    module = native_module()
    if module is None:
        return None
    try:
        module.check_shape(dimensions(config))
    except ValueError as error:
        return str(error)
    return None
