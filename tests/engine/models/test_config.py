"""Descriptions of models in many dialects, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig, RopeScaling, generation_defaults
from engine.request import GenerationDefaults
from tests.tiny_models import LLAMA3_ROPE, Family, tiny_config


def read(directory: Path, family: Family = "llama", generation: Any = None, **overrides: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(tiny_config(family, **overrides)))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return ModelConfig.from_directory(directory)


def refusal(directory: Path, family: Family = "llama", **overrides: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        read(directory, family, **overrides)
    assert str(directory / "config.json") in str(caught.value)
    return str(caught.value)


def test_rope_theta_and_scaling_are_read_from_either_place(tmp_path: Path) -> None:
    outside = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    old_type = {"type" if key == "rope_type" else key: value for key, value in outside.items()}
    configs = [
        read(tmp_path, rope_parameters=LLAMA3_ROPE | {"rope_theta": 5e5}),
        read(tmp_path, rope_parameters=None, rope_scaling=outside, rope_theta=5e5),
        read(tmp_path, rope_parameters=None, rope_scaling=old_type, rope_theta=500000),
    ]
    assert configs[0].rope_theta == 5e5
    assert configs[0].rope_scaling == RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64
    )
    assert configs[0] == configs[1] == configs[2]


def test_a_silent_config_means_what_transformers_means(tmp_path: Path) -> None:
    config = read(tmp_path, rope_parameters=None, head_dim=None, num_key_value_heads=None, rms_norm_eps=None)
    assert (config.rope_theta, config.rope_scaling) == (10000.0, None)
    assert (config.head_dim, config.num_kv_heads, config.norm_eps) == (16, 4, 1e-6)
    assert read(tmp_path, "qwen3", head_dim=None).head_dim == 128


@pytest.mark.parametrize(
    ("family", "overrides", "window"),
    [
        ("llama", {"sliding_window": 8}, None),
        ("mistral", {"sliding_window": 8}, 8),
        ("mistral", {"sliding_window": None}, None),
        ("qwen2", {"sliding_window": 8}, None),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, 8),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, None),
        ("qwen3", {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 3}, 8),
        ("qwen3", {"sliding_window": None, "layer_types": ["full_attention"] * 3}, None),
    ],
)
def test_the_sliding_window_is_read_as_each_family_means_it(
    tmp_path: Path, family: Family, overrides: dict[str, Any], window: int | None
) -> None:
    assert read(tmp_path, family, **overrides).sliding_window == window


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    sliding = {"sliding_window": 8, "use_sliding_window": True}
    assert "max_window_layers" in refusal(tmp_path, "qwen2", **sliding, max_window_layers=1)
    mixed = ["full_attention", "sliding_attention", "full_attention"]
    assert "mixes 2 full and 1 sliding" in refusal(tmp_path, "qwen3", **sliding, layer_types=mixed)
    assert "linear_attention" in refusal(tmp_path, "qwen3", layer_types=["linear_attention"] * 3)
    assert "use_sliding_window" in refusal(tmp_path, "qwen3", layer_types=["sliding_attention"] * 3)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"])
@pytest.mark.parametrize("value", [0, -3, "many", 1.5, True, [4]])
def test_a_wrong_size_is_refused_by_name(tmp_path: Path, key: str, value: Any) -> None:
    assert repr(key) in refusal(tmp_path, "llama", **{key: value})


@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
     "max_position_embeddings"],
)  # fmt: skip
def test_a_missing_size_is_refused_by_name(tmp_path: Path, key: str) -> None:
    assert f"{key!r} is missing" in refusal(tmp_path, "llama", **{key: None})


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "GemmaForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": None, "model_type": "mamba"}, "mamba"),
        ({"architectures": None, "model_type": None}, "model_type"),
        ({"architectures": ["A", "B"]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"head_dim": None, "hidden_size": 66}, "num_attention_heads"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"eos_token_id": 512}, "eos_token_id"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2, 3]}}, "mrope_section"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"rope_parameters": LLAMA3_ROPE | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": "fast"}, "rope_parameters"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, overrides: dict[str, Any], named: str) -> None:
    assert named in refusal(tmp_path, **overrides)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", '{"a": ' * 50000])
def test_a_damaged_config_names_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config\.json"):
        ModelConfig.from_directory(tmp_path)


def test_a_missing_config_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config\.json: no such file"):
        ModelConfig.from_directory(tmp_path)


def test_end_ids_of_generation_config_come_first_and_once(tmp_path: Path) -> None:
    config = read(tmp_path, generation={"eos_token_id": [7, 2]}, eos_token_id=[2, 9], bos_token_id=4)
    assert config.eos_token_ids == (7, 2, 9)
    assert config.bos_token_id == 4
    assert read(tmp_path, generation={}, eos_token_id=5).eos_token_ids == (5,)


def test_generation_defaults_are_what_the_authors_recommend(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == GenerationDefaults()
    recommended = {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1}
    read(tmp_path, generation=recommended)
    assert generation_defaults(tmp_path) == GenerationDefaults(
        temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1
    )


@pytest.mark.parametrize(
    "wrong", [{"temperature": "hot"}, {"temperature": -1}, {"top_p": 1.5}, {"top_k": 2.5}, {"repetition_penalty": 0}]
)
def test_a_wrong_recommendation_is_refused_by_name(tmp_path: Path, wrong: dict[str, Any]) -> None:
    read(tmp_path, generation=wrong)
    with pytest.raises(ModelLoadError, match=rf"generation_config\.json.*{next(iter(wrong))}"):
        generation_defaults(tmp_path)
