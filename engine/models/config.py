"""One description of a decoder model, from many dialects of `config.json` or from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """Llama 3's frequency-dependent stretch of rotary positions (the `llama3` rope type), or a linear one.

    Attributes:
        kind: `llama3` or `linear`.
        factor: How much longer the context became.
        low_freq_factor, high_freq_factor: Bounds between stretched and untouched wavelengths (`llama3`).
        original_max_position: Context the model was first trained on (`llama3`).
    """

    kind: Literal["llama3", "linear"]
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """What the code needs to know of a decoder.

    Attributes:
        architecture: Family.
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_layers, num_heads, num_kv_heads, head_dim: Shape of the attention.
        max_position: Context the model was made for, in tokens.
        norm_eps: Epsilon of RMSNorm.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How they are stretched, or None.
        sliding_window: Tokens a position sees back, itself included; None means all.
        tied_embeddings: The head is the embedding.
        attention_bias: q, k and v projections have biases (Qwen2).
        qk_norm: RMSNorm over each head of q and k (Qwen3).
        bos_token_id: Begin id, or None.
        eos_token_ids: End ids, `generation_config.json` first.
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    sliding_window: int | None = None
    tied_embeddings: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
