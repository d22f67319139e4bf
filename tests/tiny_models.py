"""Small random models of every family, written as real model directories and GGUF files.

The files are what a user would have: config.json, safetensors (in shards if asked), generation_config.json, a
byte-level tokenizer with a chat template. `transformers` loads them as readily as the engine does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.models.config import ModelConfig
from engine.models.parameters import parameter_shapes

Family = Literal["llama", "mistral", "qwen2", "qwen3"]
FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3")

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Their ids are 0, 1 and 2."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
"""A stretch strong enough to tell within a hundred tokens."""

_TEXT = "What is the capital of France? Paris. naïve café, über, 日本語, Привет, 🙂. 1 2 3 4 5 6 7 8 9 10"
"""Trains the tokenizer together with this very file, which is long enough for every id to get a text."""

_CLASS_NAMES: dict[Family, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def tiny_config(family: Family, **overrides: Any) -> dict[str, Any]:
    """The config.json of a small model.

    Args:
        family: Which family.
        **overrides: Keys to set; None removes a key.
    """
    config: dict[str, Any] = {
        "architectures": [_CLASS_NAMES[family]],
        "model_type": family,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24 if family == "qwen3" else 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": family in ("qwen2", "qwen3"),
        "attention_dropout": 0.0,
        "dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = False
    if family == "mistral":
        config["sliding_window"] = 24
    if family == "qwen2":
        del config["head_dim"]
    config |= overrides
    return {key: value for key, value in config.items() if value is not None or key == "sliding_window"}


def write_tiny_model(
    directory: Path,
    family: Family = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    num_shards: int = 1,
    **overrides: Any,
) -> Path:
    """Writes a random model directory.

    Args:
        directory: Made if it does not exist.
        family: Which family.
        seed: Of the weights.
        dtype: Of the stored weights.
        num_shards: More than 1 writes an index and as many files.
        **overrides: Keys of config.json.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", tiny_config(family, dtype=str(dtype).removeprefix("torch."), **overrides))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": [2, 0], "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 40},
    )
    write_tiny_tokenizer(directory)
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(directory, seed)}
    _write_shards(directory, tensors, num_shards)
    return directory


def random_tensors(directory: Path, seed: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Random float32 weights for the config.json in a directory, wide enough that logits differ clearly."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in parameter_shapes(ModelConfig.from_directory(directory)).items():
        tensor = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            yield name, 1.0 + 0.2 * tensor
        elif name.endswith("bias"):
            yield name, 0.5 * tensor
        else:
            yield name, tensor * 1.5 * shape[-1] ** -0.5


def write_tiny_tokenizer(directory: Path) -> Path:
    """Writes tokenizer.json and tokenizer_config.json: byte-level BPE of 512 ids, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        show_progress=False,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([_TEXT, Path(__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "unk_token": None,
            "model_max_length": 512,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return directory


def write_tiny_gguf(
    path: Path, directory: Path, *, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> Path:
    """Writes a model directory as a GGUF file, the way llama.cpp's converter does.

    Args:
        path: File to write.
        directory: A directory made by `write_tiny_model`.
        kind: Quantisation of the matrices; vectors stay F32.

    Returns:
        The file.
    """
    config = ModelConfig.from_directory(directory)
    arch = "llama" if config.architecture == "mistral" else config.architecture
    writer = gguf.GGUFWriter(path, arch)
    _add_metadata(writer, config, arch)
    _add_vocabulary(writer, json.loads((directory / "tokenizer.json").read_text(encoding="utf-8")))
    if config.rope_scaling is not None and config.rope_scaling.kind == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    for name, tensor in _stored_tensors(directory):
        data = tensor.float().numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            data = _interleaved(data, config.num_heads if "q_proj" in name else config.num_kv_heads)
        of_kind = kind if data.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(_gguf_name(name, arch, config), gguf.quantize(data, of_kind), raw_dtype=of_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _write_shards(directory: Path, tensors: dict[str, torch.Tensor], num_shards: int) -> None:
    if num_shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for index in range(num_shards):
        file = f"model-{index + 1:05d}-of-{num_shards:05d}.safetensors"
        names = list(tensors)[index::num_shards]
        save_file({name: tensors[name] for name in names}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index_json = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index_json)


def _stored_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    from engine.models.safetensors_checkpoint import SafetensorsCheckpoint

    yield from SafetensorsCheckpoint(directory).tensors(torch.float32, torch.device("cpu"))


def _add_metadata(writer: gguf.GGUFWriter, config: ModelConfig, arch: str) -> None:
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    if config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    if config.rope_scaling is not None and config.rope_scaling.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)


def _add_vocabulary(writer: gguf.GGUFWriter, tokenizer: dict[str, Any]) -> None:
    vocab = dict(tokenizer["model"]["vocab"])
    vocab |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: int(vocab[token]))
    tokens += [f"[PAD{index}]" for index in range(len(tokens), VOCAB_SIZE)]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in tokenizer["model"]["merges"]]
    normal, control, unused = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.UNUSED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [control if token in SPECIAL_TOKENS else unused if token.startswith("[PAD") else normal for token in tokens]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _rope_factors(config: ModelConfig) -> np.ndarray[Any, Any]:
    """Llama 3's stretch as llama.cpp's converter works it out, one divisor a frequency."""
    scaling = config.rope_scaling
    assert scaling is not None
    factors = []
    for frequency in 1.0 / config.rope_theta ** (np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < scaling.original_max_position / scaling.high_freq_factor:
            factors.append(1.0)
        elif wavelength > scaling.original_max_position / scaling.low_freq_factor:
            factors.append(scaling.factor)
        else:
            smooth = scaling.original_max_position / wavelength - scaling.low_freq_factor
            smooth /= scaling.high_freq_factor - scaling.low_freq_factor
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return np.array(factors, dtype=np.float32)


def _interleaved(data: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order of q and k rows: the halves of each head alternate."""
    halves = data.reshape(num_heads, 2, data.shape[0] // num_heads // 2, *data.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(data.shape))


def _gguf_name(name: str, arch: str, config: ModelConfig) -> str:
    by_name = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(by_name[arch], config.num_layers)
    renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert renamed is not None, f"llama.cpp knows no {name}"
    return str(renamed)
