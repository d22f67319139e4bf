"""GGUF files: the same model as the directory they were made from, and refusals that name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.errors import ModelLoadError
from engine.models.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import load_model
from engine.models.gguf_file import GGUFFile
from tests.engine.models.harness import run_tokens
from tests.tiny_models import FAMILIES, LLAMA3_ROPE, Family, write_tiny_gguf, write_tiny_model

TOKENS = [(index * 37) % 500 for index in range(80)]


def logits(path: Path) -> torch.Tensor:
    return run_tokens(load_model(open_checkpoint(path), device="cpu", dtype=torch.float32), TOKENS)


def refusal(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        logits(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_computes_what_its_directory_computes(tmp_path: Path, family: Family) -> None:
    directory = write_tiny_model(tmp_path, family)
    path = write_tiny_gguf(tmp_path / "model.gguf", directory)
    assert torch.equal(logits(path), logits(directory))


def test_the_llama3_rope_survives_as_factors(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path, rope_parameters=LLAMA3_ROPE)
    path = write_tiny_gguf(tmp_path / "model.gguf", directory)
    scaling = open_checkpoint(path).config.rope_scaling
    assert scaling is not None
    assert scaling.kind == "factors"
    torch.testing.assert_close(logits(path), logits(directory), atol=1e-4, rtol=0)


def test_a_linear_rope_and_a_tied_head_survive(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    directory = write_tiny_model(tmp_path, rope_parameters=rope, tie_word_embeddings=True)
    path = write_tiny_gguf(tmp_path / "model.gguf", directory)
    assert open_checkpoint(path).config.tied_embeddings
    assert torch.equal(logits(path), logits(directory))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_config_is_that_of_the_directory(tmp_path: Path, family: Family) -> None:
    directory = write_tiny_model(tmp_path, family)
    path = write_tiny_gguf(tmp_path / "model.gguf", directory)
    ours, theirs = ModelConfig.from_gguf(path), ModelConfig.from_directory(directory)
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
            "max_position", "norm_eps", "rope_theta", "rope_scaling", "sliding_window", "tied_embeddings",
            "attention_bias", "qk_norm", "bos_token_id", "eos_token_ids")  # fmt: skip
    assert {name: getattr(ours, name) for name in same} == {name: getattr(theirs, name) for name in same}


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1])
def test_each_quantisation_gives_back_what_was_written(tmp_path: Path, kind: Kind) -> None:
    matrix = np.random.default_rng(0).standard_normal((96, 64), dtype=np.float32)
    path = write_file(tmp_path / "one.gguf", lambda writer: add_quantised(writer, "blk.0.ffn_up.weight", matrix, kind))
    expected = gguf.dequantize(gguf.quantize(matrix, kind), kind)
    tensor = GGUFFile(path).tensor("blk.0.ffn_up.weight", torch.float32)
    assert np.array_equal(tensor.numpy(), expected)
    assert np.abs(tensor.numpy() - matrix).max() < 0.6


@pytest.mark.parametrize("kind", [Kind.Q4_K, Kind.Q5_K, Kind.Q6_K])
def test_k_quantisations_are_read_in_blocks_like_in_one_piece(tmp_path: Path, kind: Kind) -> None:
    block_size, type_size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(0)
    data = random.integers(0, 120, (40, 2 * type_size), dtype=np.uint8)
    path = write_file(tmp_path / "one.gguf", lambda writer: writer.add_tensor("output.weight", data, raw_dtype=kind))
    file = GGUFFile(path)
    assert file.shape("output.weight") == (40, 2 * block_size)
    expected = gguf.dequantize(data, kind)
    assert np.array_equal(file.tensor("output.weight", torch.float32).numpy(), expected)


def test_an_unsupported_quantisation_names_tensor_and_type(tmp_path: Path) -> None:
    data = np.zeros((4, gguf.GGML_QUANT_SIZES[Kind.Q8_K][1]), dtype=np.uint8)
    path = write_file(
        tmp_path / "one.gguf", lambda writer: writer.add_tensor("output.weight", data, raw_dtype=Kind.Q8_K)
    )
    with pytest.raises(ModelLoadError, match=r"'output\.weight'.*Q8_K"):
        GGUFFile(path).tensor("output.weight", torch.float32)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", write_tiny_model(tmp_path))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    refusal(path)


def test_a_file_of_noise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + np.random.default_rng(0).bytes(4000))
    refusal(path)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("general.architecture", "gemma3", "gemma3"),
        ("llama.expert_count", 8, "expert_count"),
        ("llama.rope.scaling.type", "yarn", "yarn"),
        ("llama.rope.dimension_count", 8, "rope.dimension_count"),
        ("llama.attention.head_count_kv", 3, "head_count_kv"),
        ("llama.block_count", 0, "block_count"),
        ("tokenizer.ggml.eos_token_id", 9999, "eos_token_id"),
    ],
)
def test_wrong_metadata_is_refused_by_name(tmp_path: Path, key: str, value: Any, named: str) -> None:
    def describe(writer: gguf.GGUFWriter) -> None:
        fields: dict[str, Any] = {
            "llama.context_length": 64, "llama.embedding_length": 64, "llama.feed_forward_length": 96,
            "llama.block_count": 1, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
        }  # fmt: skip
        fields[key] = value
        if key == "general.architecture":
            writer.kv_data[0].pop(key)
        for name, one in fields.items():
            add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(one)]
            add(name, one)
        writer.add_tensor("token_embd.weight", np.zeros((512, 64), dtype=np.float32))

    assert named in refusal(write_file(tmp_path / "model.gguf", describe))


def test_end_ids_include_the_turn_ends_of_the_vocabulary(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", write_tiny_model(tmp_path))
    assert ModelConfig.from_gguf(path).eos_token_ids == (2, 0)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path)
    path = write_tiny_gguf(tmp_path / "model.gguf", directory)
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_UP.weight"))
    assert "blk.1.ffn_UP.weight" in refusal(path)


def write_file(path: Path, fill: Callable[[gguf.GGUFWriter], None]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_quantised(writer: gguf.GGUFWriter, name: str, matrix: np.ndarray[Any, Any], kind: Kind) -> None:
    writer.add_tensor(name, gguf.quantize(matrix, kind), raw_dtype=kind)
