"""A decoder's tensors as they lie in memory, and where each named tensor of a checkpoint goes.

Letters: V vocabulary, E hidden_size, I intermediate_size, H query heads, G key/value heads, D head_dim.
Projections that read the same input are one matrix, so that a layer is four products instead of seven.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig
from engine.quantization.formats import NumberFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixScales:
    """What the rows of a layer's quantized matrices are multiplied by, float32; None for matrices that are not.

    Attributes:
        qkv: [(H + 2G) * D].
        output: [E].
        gate_up: [2I].
        down: [E].
    """

    qkv: torch.Tensor | None = None
    output: torch.Tensor | None = None
    gate_up: torch.Tensor | None = None
    down: torch.Tensor | None = None


@dataclass(kw_only=True, slots=True)
class LayerWeights:
    """One layer. Norms are float32, all else has the model's dtype, but matrices may be quantized.

    Attributes:
        input_norm: [E].
        qkv: [(H + 2G) * D, E], rows of q, k and v in this order.
        qkv_bias: [(H + 2G) * D], or None.
        qk_norm: [H + G, D], the head norm of q repeated for each of its heads, then that of k; or None.
        output: [E, H * D].
        post_norm: [E].
        gate_up: [2I, E], rows of gate, then of up.
        down: [E, I].
        scales: Of quantized matrices, see `engine.quantization`.
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    output: torch.Tensor
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    scales: MatrixScales = MatrixScales()


@dataclass(kw_only=True, slots=True)
class DecoderWeights:
    """All of a decoder.

    Attributes:
        embedding: [V, E].
        layers: First to last.
        norm: [E] float32.
        head: [V, E]; the embedding itself if tied and not quantized.
        head_scale: [V] float32 of a quantized head, or None.
    """

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor
    head_scale: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one tensor of a checkpoint goes.

    Attributes:
        view: Memory to copy into; may repeat the tensor along a leading dimension.
        shape: What the checkpoint must bring.
        scale: Memory for the scales of its rows if it is to be quantized, or None.
    """

    view: torch.Tensor
    shape: tuple[int, ...]
    scale: torch.Tensor | None = None


def allocate(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, quantized: NumberFormat | None = None
) -> DecoderWeights:
    """Makes the memory of a decoder without filling it.

    Args:
        config: Its shape.
        dtype: Of embedding, biases, and matrices that are not quantized.
        device: Where.
        quantized: Format of the matrices that are multiplied by, or None.
    """
    hidden, vocab_size = config.hidden_size, config.vocab_size
    embedding = torch.empty((vocab_size, hidden), dtype=dtype, device=device)
    norm = torch.empty(hidden, dtype=torch.float32, device=device)
    layers = [_allocate_layer(config, dtype, device, quantized) for _ in range(config.num_layers)]
    if config.tied_embeddings and quantized is None:
        return DecoderWeights(embedding=embedding, layers=layers, norm=norm, head=embedding)
    head = torch.empty((vocab_size, hidden), dtype=quantized.dtype if quantized else dtype, device=device)
    scale = torch.empty(vocab_size, dtype=torch.float32, device=device) if quantized else None
    return DecoderWeights(embedding=embedding, layers=layers, norm=norm, head=head, head_scale=scale)


def _allocate_layer(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, quantized: NumberFormat | None
) -> LayerWeights:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    qkv_rows = (config.num_heads + 2 * config.num_kv_heads) * head_dim

    def matrix(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=quantized.dtype if quantized else dtype, device=device)

    def float32(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=device)

    scales = MatrixScales()
    if quantized is not None:
        scales = MatrixScales(
            qkv=float32(qkv_rows), output=float32(hidden), gate_up=float32(2 * inner), down=float32(hidden)
        )
    return LayerWeights(
        input_norm=float32(hidden),
        qkv=matrix(qkv_rows, hidden),
        qkv_bias=torch.empty(qkv_rows, dtype=dtype, device=device) if config.attention_bias else None,
        qk_norm=float32(config.num_heads + config.num_kv_heads, head_dim) if config.qk_norm else None,
        output=matrix(hidden, config.num_heads * head_dim),
        post_norm=float32(hidden),
        gate_up=matrix(2 * inner, hidden),
        down=matrix(hidden, inner),
        scales=scales,
    )


def destinations(config: ModelConfig, weights: DecoderWeights) -> dict[str, Destination]:
    """Maps every tensor that a checkpoint must bring, by its Hugging Face name, to its place."""
    result = {
        "model.embed_tokens.weight": _place(weights.embedding),
        "model.norm.weight": _place(weights.norm),
    }
    if not config.tied_embeddings:
        result["lm_head.weight"] = _place(weights.head, weights.head_scale)
    for index, layer in enumerate(weights.layers):
        result |= {f"model.layers.{index}.{name}": place for name, place in _layer_places(config, layer).items()}
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


def _layer_places(config: ModelConfig, layer: LayerWeights) -> dict[str, Destination]:
    """A layer's memory by the names of its tensors, those repeated over heads left out."""
    sizes = [count * config.head_dim for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    projections, scales = ("q_proj", "k_proj", "v_proj"), layer.scales
    rows = _split(layer.qkv, scales.qkv, sizes)
    places = {f"self_attn.{name}.weight": place for name, place in zip(projections, rows, strict=True)}
    if layer.qkv_bias is not None:
        biases = _split(layer.qkv_bias, None, sizes)
        places |= {f"self_attn.{name}.bias": place for name, place in zip(projections, biases, strict=True)}
    gate, up = _split(layer.gate_up, scales.gate_up, [config.intermediate_size] * 2)
    return places | {
        "input_layernorm.weight": _place(layer.input_norm),
        "self_attn.o_proj.weight": _place(layer.output, scales.output),
        "post_attention_layernorm.weight": _place(layer.post_norm),
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": _place(layer.down, scales.down),
    }


def _split(matrix: torch.Tensor, scale: torch.Tensor | None, sizes: list[int]) -> list[Destination]:
    """Places for consecutive rows of a matrix."""
    scales = [None] * len(sizes) if scale is None else torch.split(scale, sizes)
    return [_place(rows, part) for rows, part in zip(torch.split(matrix, sizes), scales, strict=True)]


def _place(view: torch.Tensor, scale: torch.Tensor | None = None) -> Destination:
    return Destination(view, tuple(view.shape), scale)
