"""GGUF metadata to a `ModelConfig`."""

from __future__ import annotations

import numpy as np
import torch

from engine.models.config import ModelConfig, RopeScaling
from engine.models.gguf_file import GGUFFile
from engine.models.hf_config import sampling_defaults
from engine.models.keys import Keys
from engine.models.registry import family_of_gguf
from engine.request import GenerationDefaults

ROPE_FACTORS = "rope_freqs.weight"
"""Tensor that holds Llama 3's stretch of the rotary frequencies, worked out."""

_CONTROL_TOKEN = 3
_END_TEXTS = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"}
"""Control tokens that end a turn or a text whatever the metadata says: files often name only one of a model's ends."""

_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Reads what the code needs to know of the decoder in a GGUF file.

    Raises:
        ModelLoadError: A key or a tensor is missing, wrong or unsupported; names both file and key.
    """
    keys = file.metadata
    family = family_of_gguf(keys)
    arch = keys.text("general.architecture")
    if "token_embd.weight" not in file.names():
        keys.fail("token_embd.weight", "is missing among the tensors")
    vocab_size = file.shape("token_embd.weight")[0]
    if keys.integer(f"{arch}.expert_count", 0, minimum=0):
        keys.fail(f"{arch}.expert_count", "is set: mixtures of experts are not supported")
    heads = _heads(keys, arch)
    # llama.cpp honours a window for this architecture alone, where it is how a Mistral calls itself.
    window = keys.integer(f"{arch}.attention.sliding_window", 0, minimum=0) if arch == "llama" else 0
    bos = keys.token_ids("tokenizer.ggml.bos_token_id", vocab_size)
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=vocab_size,
        hidden_size=keys.integer(f"{arch}.embedding_length"),
        intermediate_size=keys.integer(f"{arch}.feed_forward_length"),
        num_layers=keys.integer(f"{arch}.block_count"),
        **heads,
        max_position=keys.integer(f"{arch}.context_length"),
        norm_eps=_shortest(keys.number(f"{arch}.attention.layer_norm_rms_epsilon")),
        rope_theta=keys.number(f"{arch}.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(file, arch, heads["head_dim"]),
        sliding_window=window or None,
        tied_embeddings="output.weight" not in file.names(),
        has_head=True,
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_eos(file, vocab_size),
    )


def read_gguf_defaults(file: GGUFFile) -> GenerationDefaults:
    """Reads recommended sampling values, which newer files carry under `general.sampling`.

    Raises:
        ModelLoadError: A value is out of its range.
    """
    return sampling_defaults(file.metadata, _SAMPLING)


def _shortest(value: float) -> float:
    """The number somebody wrote before it was stored in 32 bits."""
    return float(str(np.float32(value)))


def _heads(keys: Keys, arch: str) -> dict[str, int]:
    hidden_size = keys.integer(f"{arch}.embedding_length")
    num_heads = keys.integer(f"{arch}.attention.head_count")
    num_kv_heads = keys.integer(f"{arch}.attention.head_count_kv", num_heads)
    head_dim = keys.integer(f"{arch}.attention.key_length", hidden_size // num_heads)
    if num_heads % num_kv_heads:
        keys.fail(f"{arch}.attention.head_count_kv", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    for key in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            keys.fail(key, f"is {keys.raw(key)}, but heads are {head_dim} wide; nothing else is supported")
    return {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}


def _rope_scaling(file: GGUFFile, arch: str, head_dim: int) -> RopeScaling | None:
    keys, key = file.metadata, f"{arch}.rope.scaling.type"
    kind = keys.text(key, "none")
    if kind not in ("none", "linear"):
        keys.fail(key, f"is {kind!r}; supported are linear, none")
    # Older files give an even stretch by this key alone.
    factor = keys.number(f"{arch}.rope.scaling.factor", keys.number(f"{arch}.rope.scale_linear", 1.0))
    if ROPE_FACTORS not in file.names():
        return RopeScaling(kind="linear", factor=factor) if factor != 1.0 else None
    if factor != 1.0:
        keys.fail(f"{arch}.rope.scaling.factor", f"is {factor:g} beside a tensor {ROPE_FACTORS!r}: unclear together")
    if file.shape(ROPE_FACTORS) != (head_dim // 2,):
        keys.fail(ROPE_FACTORS, f"has shape {list(file.shape(ROPE_FACTORS))} instead of [{head_dim // 2}]")
    factors = tuple(file.tensor(ROPE_FACTORS, torch.float32).tolist())
    if not all(0 < one < float("inf") for one in factors):
        keys.fail(ROPE_FACTORS, "holds factors that are not positive finite numbers")
    return None if all(one == 1.0 for one in factors) else RopeScaling(kind="factors", factors=factors)


def _eos(file: GGUFFile, vocab_size: int) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("eos", "eot", "eom"):
        ids.extend(file.metadata.token_ids(f"tokenizer.ggml.{name}_token_id", vocab_size))
    controls = file.array_items("tokenizer.ggml.token_type", _CONTROL_TOKEN)
    ids.extend(index for index, text in controls.items() if text in _END_TEXTS and index < vocab_size)
    return tuple(dict.fromkeys(ids))
