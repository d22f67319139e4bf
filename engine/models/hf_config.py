"""Hugging Face directories: the dialects of config.json and generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig, RopeScaling
from engine.models.family import Family
from engine.models.keys import Keys
from engine.models.registry import family_of_config
from engine.request import GenerationDefaults

_ROPE_KEYS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
_ROPE_NAMES = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def read_json(path: Path) -> Keys:
    """Reads one JSON object.

    Raises:
        ModelLoadError: The file is missing, unreadable, no JSON, or no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: must hold a JSON object")
    return Keys(value, path)


def read_config(directory: Path) -> ModelConfig:
    """Reads config.json and the end ids of generation_config.json.

    Raises:
        ModelLoadError: A file is missing or damaged, or a key is missing, wrong or unsupported; names both.
    """
    keys = read_json(directory / "config.json")
    family = family_of_config(keys)
    _refuse_unsupported(keys, family)
    vocab_size = keys.integer("vocab_size")
    num_layers = keys.integer("num_hidden_layers")
    max_position = keys.integer("max_position_embeddings")
    rope_theta, rope_scaling = _rope(keys, max_position)
    bos = keys.token_ids("bos_token_id", vocab_size)
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=vocab_size,
        hidden_size=keys.integer("hidden_size"),
        intermediate_size=keys.integer("intermediate_size"),
        num_layers=num_layers,
        **_heads(keys, family),
        max_position=max_position,
        norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        sliding_window=family.window(keys, num_layers),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        has_head=True,
        attention_bias=family.attention_bias,
        qk_norm=family.qk_norm,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=_eos(directory, keys, vocab_size),
    )


def read_generation_defaults(directory: Path) -> GenerationDefaults:
    """Reads the recommended sampling values of generation_config.json; all None if there is no such file.

    Raises:
        ModelLoadError: The file is damaged or a value is out of its range.
    """
    path = directory / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    return sampling_defaults(
        read_json(path),
        {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")},
    )


def sampling_defaults(keys: Keys, names: dict[str, str]) -> GenerationDefaults:
    """Checks recommended sampling values.

    Args:
        keys: Where they stand.
        names: Field of `GenerationDefaults` to the key that holds it.

    Raises:
        ModelLoadError: A value is out of its range.
    """

    def share(key: str) -> float | None:
        if key not in keys:
            return None
        value = keys.number(key, above=-1e-9)
        if value > 1:
            keys.fail(key, f"must be at most 1, not {value:g}")
        return value

    top_k = names["top_k"]
    return GenerationDefaults(
        temperature=keys.number(names["temperature"], above=-1e-9) if names["temperature"] in keys else None,
        top_p=share(names["top_p"]),
        top_k=max(keys.integer(top_k, minimum=-1), 0) if top_k in keys else None,
        min_p=share(names["min_p"]),
        repetition_penalty=keys.number(names["repetition_penalty"]) if names["repetition_penalty"] in keys else None,
    )


def _refuse_unsupported(keys: Keys, family: Family) -> None:
    """Names every switch that would change the arithmetic in a way this code does not follow."""
    if (act := keys.text("hidden_act", "silu")) != "silu":
        keys.fail("hidden_act", f"is {act!r}; only 'silu' is supported")
    for key in ("attention_bias", "qkv_bias", "mlp_bias"):
        wanted = family.attention_bias and key != "mlp_bias"
        if keys.flag(key, wanted) != wanted:
            keys.fail(key, f"is {keys.raw(key)}, which is not supported for {family.architecture}")
    if not keys.flag("is_causal", True):
        keys.fail("is_causal", "is false: positions that see what comes after them are not supported")
    if "quantization_config" in keys:
        keys.fail("quantization_config", "is set: quantized Hugging Face weights are not supported")
    for key in ("num_local_experts", "num_experts"):
        if keys.raw(key):
            keys.fail(key, "is set: mixtures of experts are not supported")


def _heads(keys: Keys, family: Family) -> dict[str, int]:
    hidden_size = keys.integer("hidden_size")
    num_heads = keys.integer("num_attention_heads")
    num_kv_heads = keys.integer("num_key_value_heads", family.default_kv_heads or num_heads)
    if num_heads % num_kv_heads:
        keys.fail("num_key_value_heads", f"is {num_kv_heads}, which does not divide the {num_heads} attention heads")
    if "head_dim" in keys:
        head_dim = keys.integer("head_dim")
    elif family.default_head_dim is not None:
        head_dim = family.default_head_dim
    elif hidden_size % num_heads:
        keys.fail("num_attention_heads", f"is {num_heads}, which does not divide hidden_size {hidden_size}")
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        keys.fail("head_dim", f"is {head_dim}; rotary positions need an even width")
    return {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim}


def _rope(keys: Keys, max_position: int) -> tuple[float, RopeScaling | None]:
    """Reads `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` at either place."""
    section = "rope_parameters" if "rope_parameters" in keys else "rope_scaling"
    rope = keys.nested(section)
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        keys.fail("partial_rotary_factor", "is not 1: partly rotated heads are not supported")
    outer_theta = keys.number("rope_theta", 10000.0)
    if rope is None or not rope.names():
        return outer_theta, None
    theta = rope.number("rope_theta", outer_theta)
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _ROPE_KEYS:
        rope.fail("rope_type", f"is {kind!r}; supported are {', '.join(sorted(_ROPE_KEYS))}")
    if rope.number("partial_rotary_factor", 1.0) != 1.0:
        rope.fail("partial_rotary_factor", "is not 1: partly rotated heads are not supported")
    for name in sorted(rope.names() - _ROPE_KEYS[kind] - _ROPE_NAMES):
        rope.fail(name, f"is not supported for the rope type {kind!r}")
    if kind == "default":
        return theta, None
    factor = rope.number("factor")
    if kind == "linear":
        return theta, RopeScaling(kind="linear", factor=factor)
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        rope.fail("high_freq_factor", f"is {high:g}, which is not above low_freq_factor {low:g}")
    original = rope.integer(
        "original_max_position_embeddings", keys.integer("original_max_position_embeddings", max_position)
    )
    return theta, RopeScaling(
        kind="llama3", factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position=original
    )


def _eos(directory: Path, keys: Keys, vocab_size: int) -> tuple[int, ...]:
    """End ids of generation_config.json, then those of config.json, each once."""
    ids: list[Any] = []
    path = directory / "generation_config.json"
    if path.exists():
        ids.extend(read_json(path).token_ids("eos_token_id", vocab_size))
    ids.extend(keys.token_ids("eos_token_id", vocab_size))
    return tuple(dict.fromkeys(ids))
