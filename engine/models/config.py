"""One description of a decoder model, from many dialects of `config.json` or from GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.request import GenerationDefaults

if TYPE_CHECKING:
    from engine.models.gguf_file import GGUFFile

Architecture = Literal["llama", "mistral", "qwen2", "qwen3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeScaling:
    """How rotary positions are stretched: Llama 3's frequency-dependent way, evenly, or by given factors.

    Attributes:
        kind: `llama3`, `linear`, or `factors` (GGUF stores what Llama 3's rule comes to).
        factor: How much longer the context became (`llama3`, `linear`).
        low_freq_factor, high_freq_factor: Bounds between stretched and untouched wavelengths (`llama3`).
        original_max_position: Context the model was first trained on (`llama3`).
        factors: Divisor of each of the head_dim / 2 frequencies (`factors`).
    """

    kind: Literal["llama3", "linear", "factors"]
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()


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
        has_head: Its logits mean something; false for a model that was only made to embed.
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
    has_head: bool = True
    attention_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_directory(cls, path: Path) -> ModelConfig:
        """Reads a Hugging Face directory's config.json, with end ids of its generation_config.json first.

        Raises:
            ModelLoadError: A file is missing or damaged, or a key is missing, wrong or unsupported; names both.
        """
        # The dialects build a ModelConfig, so they import this module and it can only import them when called.
        from engine.models.hf_config import read_config

        return read_config(path)

    @classmethod
    def from_gguf(cls, file: GGUFFile | Path) -> ModelConfig:
        """Reads a GGUF file's metadata.

        Raises:
            ModelLoadError: The file is damaged, or a key is missing, wrong or unsupported; names both.
        """
        from engine.models.gguf_config import read_gguf_config
        from engine.models.gguf_file import GGUFFile

        return read_gguf_config(file if isinstance(file, GGUFFile) else GGUFFile(file))


def generation_defaults(path: Path) -> GenerationDefaults:
    """Reads what the authors of a Hugging Face directory recommend in its generation_config.json, if there is one.

    `do_sample` is not looked at: it says what `transformers` does unasked, the other keys say which values are good.

    Raises:
        ModelLoadError: The file is damaged or a value is out of its range.
    """
    from engine.models.hf_config import read_generation_defaults

    return read_generation_defaults(path)
