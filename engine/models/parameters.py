"""A decoder's tensors as they lie in memory, and where each named tensor of a checkpoint goes.

Letters: V vocabulary, E hidden_size, I intermediate_size, H query heads, G key/value heads, D head_dim.
Projections that read the same input are one matrix, so that a layer is four products instead of seven.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig


@dataclass(kw_only=True, slots=True)
class LayerWeights:
    """One layer. Norms are float32, all else has the model's dtype.

    Attributes:
        input_norm: [E].
        qkv: [(H + 2G) * D, E], rows of q, k and v in this order.
        qkv_bias: [(H + 2G) * D], or None.
        qk_norm: [H + G, D], the head norm of q repeated for each of its heads, then that of k; or None.
        output: [E, H * D].
        post_norm: [E].
        gate_up: [2I, E], rows of gate, then of up.
        down: [E, I].
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(kw_only=True, slots=True)
class DecoderWeights:
    """All of a decoder.

    Attributes:
        embedding: [V, E].
        layers: First to last.
        norm: [E] float32.
        head: [V, E]; the embedding itself if tied.
    """

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one tensor of a checkpoint goes.

    Attributes:
        view: Memory to copy into; may repeat the tensor along a leading dimension.
        shape: What the checkpoint must bring.
    """

    view: torch.Tensor
    shape: tuple[int, ...]


def allocate(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Makes the memory of a decoder without filling it."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * head_dim

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def norm(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    embedding = matrix(config.vocab_size, hidden)
    layers = [
        LayerWeights(
            input_norm=norm(hidden),
            qkv=matrix(qkv_rows, hidden),
            qkv_bias=matrix(qkv_rows) if config.attention_bias else None,
            qk_norm=norm(config.num_heads + config.num_kv_heads, head_dim) if config.qk_norm else None,
            output=matrix(hidden, config.num_heads * head_dim),
            post_norm=norm(hidden),
            gate_up=matrix(2 * inner, hidden),
            down=matrix(hidden, inner),
        )
        for _ in range(config.num_layers)
    ]
    head = embedding if config.tied_embeddings else matrix(config.vocab_size, hidden)
    return DecoderWeights(embedding=embedding, layers=layers, norm=norm(hidden), head=head)


def destinations(config: ModelConfig, weights: DecoderWeights) -> dict[str, Destination]:
    """Maps every tensor that a checkpoint must bring, by its Hugging Face name, to its place."""
    views = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.norm}
    if not config.tied_embeddings:
        views["lm_head.weight"] = weights.head
    for index, layer in enumerate(weights.layers):
        views |= {f"model.layers.{index}.{name}": view for name, view in _layer_views(config, layer).items()}
    result = {name: Destination(view, tuple(view.shape)) for name, view in views.items()}
    for index, layer in enumerate(weights.layers):
        if layer.qk_norm is not None:
            prefix, shape = f"model.layers.{index}.self_attn.", (config.head_dim,)
            result[f"{prefix}q_norm.weight"] = Destination(layer.qk_norm[: config.num_heads], shape)
            result[f"{prefix}k_norm.weight"] = Destination(layer.qk_norm[config.num_heads :], shape)
    return result


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor a checkpoint of this configuration must bring, by its Hugging Face name."""
    weights = allocate(config, torch.bfloat16, torch.device("meta"))
    return {name: destination.shape for name, destination in destinations(config, weights).items()}


def _layer_views(config: ModelConfig, layer: LayerWeights) -> dict[str, torch.Tensor]:
    """A layer's memory by the names of its tensors, those repeated over heads left out."""
    sizes = [count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    projections = ("q_proj", "k_proj", "v_proj")
    views = {
        f"self_attn.{name}.weight": rows for name, rows in zip(projections, torch.split(layer.qkv, sizes), strict=True)
    }
    if layer.qkv_bias is not None:
        biases = torch.split(layer.qkv_bias, sizes)
        views |= {f"self_attn.{name}.bias": rows for name, rows in zip(projections, biases, strict=True)}
    gate, up = layer.gate_up.chunk(2)
    return views | {
        "input_layernorm.weight": layer.input_norm,
        "self_attn.o_proj.weight": layer.output,
        "post_attention_layernorm.weight": layer.post_norm,
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": layer.down,
    }
