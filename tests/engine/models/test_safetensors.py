"""Hugging Face directories: shards, damage, and what each refusal names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.models.checkpoint import open_checkpoint
from engine.models.decoder import load_model, num_parameters
from tests.engine.models.harness import run_tokens
from tests.tiny_models import write_tiny_model

TOKENS = [3, 400, 5, 77, 8]


def load(directory: Path) -> torch.Tensor:
    return run_tokens(load_model(open_checkpoint(directory), device="cpu", dtype=torch.float32), TOKENS)


def refusal(directory: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load(directory)
    return str(caught.value)


def edit(directory: Path, change: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(directory / "model.safetensors") | change
    save_file({name: one for name, one in tensors.items() if one is not None}, directory / "model.safetensors")


def test_shards_load_like_one_file_with_or_without_an_index(tmp_path: Path) -> None:
    single = load(write_tiny_model(tmp_path / "one"))
    shards = write_tiny_model(tmp_path / "three", num_shards=3)
    assert torch.equal(load(shards), single)
    (shards / "model.safetensors.index.json").unlink()
    assert torch.equal(load(shards), single)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards = write_tiny_model(tmp_path, num_shards=3)
    (shards / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(shards)
    (shards / "model.safetensors.index.json").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(shards)


def test_a_tensor_the_index_places_in_the_wrong_shard_is_named(tmp_path: Path) -> None:
    shards = write_tiny_model(tmp_path, num_shards=2)
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = "model-00002-of-00002.safetensors"
    content["weight_map"]["model.embed_tokens.weight"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(content))
    message = refusal(shards)
    assert "model-00002-of-00002.safetensors" in message
    assert "'model." in message


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_cannot_reach_outside_its_directory(tmp_path: Path, name: str) -> None:
    shards = write_tiny_model(tmp_path, num_shards=2)
    (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    assert "no file of this directory" in refusal(shards)


@pytest.mark.parametrize("keep", [0, 4, 40, 2000, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    file = write_tiny_model(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert str(file) in refusal(tmp_path)


def test_a_directory_without_safetensors_says_what_it_found(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(directory)


def test_missing_and_unexpected_tensors_are_named(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    edit(directory, {name: None})
    assert name in refusal(directory)
    assert "is missing" in refusal(directory)
    edit(directory, {name: torch.zeros(96, 64), "model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    assert "model.layers.0.self_attn.q_proj.bias" in refusal(directory)


def test_a_wrong_shape_says_found_and_expected(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    edit(directory, {"model.layers.2.self_attn.k_proj.weight": torch.zeros(64, 64)})
    message = refusal(directory)
    assert "model.layers.2.self_attn.k_proj.weight" in message
    assert "has shape [64, 64], expected [32, 64]" in message
    assert str(directory / "model.safetensors") in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(tmp_path: Path, value: float) -> None:
    directory = write_tiny_model(tmp_path)
    weight = load_file(directory / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    weight[3, 5] = value
    edit(directory, {"model.layers.0.mlp.down_proj.weight": weight})
    assert "model.layers.0.mlp.down_proj.weight" in refusal(directory)


def test_integer_tensors_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    edit(directory, {"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    assert "int8" in refusal(directory)


def test_a_tied_head_in_the_file_must_equal_the_embedding(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, tie_word_embeddings=True)
    expected = load(directory)
    embedding = load_file(directory / "model.safetensors")["model.embed_tokens.weight"]
    edit(directory, {"lm_head.weight": embedding.clone()})
    assert torch.equal(load(directory), expected)
    edit(directory, {"lm_head.weight": embedding + 1})
    assert "lm_head.weight" in refusal(directory)


def test_derived_tensors_of_old_files_are_passed_over(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    expected = load(directory)
    edit(directory, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert torch.equal(load(directory), expected)


def test_the_fingerprint_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    first = open_checkpoint(write_tiny_model(tmp_path / "a")).fingerprint()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert open_checkpoint(tmp_path / "b").fingerprint() == first
    assert open_checkpoint(write_tiny_model(tmp_path / "c", seed=1)).fingerprint() != first
    assert open_checkpoint(write_tiny_model(tmp_path / "d", rms_norm_eps=1e-6)).fingerprint() != first


def test_parameters_are_counted_once(tmp_path: Path) -> None:
    for index, tied in enumerate((False, True)):
        directory = write_tiny_model(tmp_path / str(index), "qwen3", tie_word_embeddings=tied)
        model = load_model(open_checkpoint(directory), device="cpu", dtype=torch.bfloat16)
        stored = load_file(directory / "model.safetensors")
        assert num_parameters(model) == sum(tensor.numel() for tensor in stored.values())


def test_nothing_and_other_files_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such file or directory"):
        open_checkpoint(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelLoadError, match="neither a Hugging Face directory nor a GGUF file"):
        open_checkpoint(tmp_path / "notes.txt")
