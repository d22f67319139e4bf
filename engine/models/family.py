"""What sets one family of decoders apart from another, as data and one rule; the rest is shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.models.config import Architecture
from engine.models.keys import Keys


def no_window(keys: Keys, num_layers: int) -> int | None:
    """The rule of families whose every position sees all before it."""
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One family.

    Attributes:
        architecture: Its name here.
        hf_class: Name in the `architectures` of a config.json.
        model_type: Name in the `model_type` of a config.json.
        gguf_arch: Name in the `general.architecture` of a GGUF file; None if it has none of its own.
        gguf_permutes_qk: llama.cpp stores its q and k rows with the two halves of each head interleaved.
        attention_bias: q, k and v projections have biases.
        qk_norm: Each head of q and k is normed.
        default_head_dim: What a silent config.json means; None means hidden_size / num_attention_heads.
        default_kv_heads: What a silent config.json means; None means as many as query heads.
        window: Reads the sliding window from config.json; refuses layers that differ from each other.
    """

    architecture: Architecture
    hf_class: str
    model_type: str
    gguf_arch: str | None = None
    gguf_permutes_qk: bool = False
    attention_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None
    default_kv_heads: int | None = None
    window: Callable[[Keys, int], int | None] = no_window

    @property
    def hf_base_class(self) -> str:
        """Name in the `architectures` of a config.json whose model is stored without its head."""
        return self.hf_class.removesuffix("ForCausalLM") + "Model"
