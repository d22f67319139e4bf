"""Looks at a model's files without loading them: which kind they are, which belong to it, and whether all are whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from engine.sources.errors import DamagedModel, UnsupportedModel
from engine.sources.manifest import ModelFormat, is_inside

MODEL_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "modules.json",
    "*_Pooling/config.json",
    "additional_chat_templates/*.jinja",
    "*.safetensors",
    "*.safetensors.index.json",
    "LICENSE*",
    "NOTICE*",
)
"""Files of a repository that we take; weights of other formats, code and pictures stay where they are."""

_INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100 << 20
_GGUF_VERSIONS = (2, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """What was found.

    Attributes:
        format: Kind of model.
        entry: What to load, relative to the directory ("." for the directory itself).
        files: Every file that belongs to it, relative.
    """

    format: ModelFormat
    entry: str
    files: tuple[str, ...]


def is_model_file(path: str) -> bool:
    """Whether a file of a repository is one that we take; consolidated copies of the same weights are not."""
    if path.startswith("consolidated"):
        return False
    return any(fnmatchcase(path, pattern) for pattern in MODEL_PATTERNS if path.count("/") == pattern.count("/"))


def inspect_directory(directory: Path) -> Inspection:
    """Checks a Hugging Face directory.

    Raises:
        UnsupportedModel: It has no `config.json`, or no safetensors weights.
        DamagedModel: A file is missing, truncated or unreadable; the message names it.
    """
    if not (directory / "config.json").is_file():
        raise UnsupportedModel(f"{directory} is no Hugging Face model directory: it has no config.json")
    _read_object(directory / "config.json")
    files = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    files = {path for path in files if is_model_file(path)}
    if "tokenizer.json" not in files:
        raise UnsupportedModel(f"{directory} has no tokenizer.json (other tokenizer files are not read)")
    weights = _weight_files(directory, files)
    for path in weights:
        check_safetensors(directory / path)
    surplus = {path for path in files if path.endswith(".safetensors")} - weights
    return Inspection(format="huggingface", entry=".", files=tuple(sorted(files - surplus)))


def inspect_gguf(directory: Path, file_path: str) -> Inspection:
    """Checks that a file of a directory is GGUF of a version we read.

    Raises:
        UnsupportedModel: It is something else, of another version, or one part of several.
        DamagedModel: It is too short to be one.
    """
    path = directory / file_path
    with open(path, "rb") as file:
        head = file.read(24)
    if head[:4] != b"GGUF":
        raise UnsupportedModel(f"{path} is no GGUF file: it does not begin with 'GGUF'")
    if len(head) < 24:
        raise DamagedModel(f"{path} is truncated: {len(head)} bytes")
    (version,) = struct.unpack_from("<I", head, 4)
    if version not in _GGUF_VERSIONS:
        raise UnsupportedModel(f"{path} is GGUF version {version}; this engine reads versions 2 and 3, little-endian")
    if "-00001-of-0" in path.name:
        raise UnsupportedModel(f"{path} is one part of a split GGUF; merge the parts with `llama-gguf-split --merge`")
    return Inspection(format="gguf", entry=file_path, files=(file_path,))


def check_safetensors(path: Path) -> None:
    """Checks that a safetensors file is as long as its header says.

    Raises:
        DamagedModel: It is not; the message names the file and the lengths.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise DamagedModel(f"{path} is truncated: {size} bytes")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > min(_MAX_HEADER_BYTES, size - 8):
            raise DamagedModel(f"{path} is truncated or no safetensors file: its header claims {header_bytes} bytes")
        header = _parse_object(file.read(header_bytes), path)
    ends = (entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    try:
        expected = 8 + header_bytes + max(ends, default=0)
    except (KeyError, IndexError, TypeError) as error:
        raise DamagedModel(f"{path} has a damaged header ({type(error).__name__})") from error
    if size != expected:
        raise DamagedModel(f"{path} has {size} bytes, its header says {expected}: the file is truncated or damaged")


def check_weights_offered(where: str, files: Iterable[str]) -> None:
    """Refuses a list of files that holds no weights we read, and says what it holds instead.

    Raises:
        UnsupportedModel: No safetensors file is among them.
    """
    names = set(files)
    if any(name.endswith(".safetensors") and is_model_file(name) for name in names):
        return
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        raise UnsupportedModel(
            f"{where} has no safetensors weights but {len(ggufs)} GGUF file(s); name one: "
            + ", ".join(f"{where}:{name}" for name in ggufs[:8])
        )
    pickles = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
    if pickles:
        raise UnsupportedModel(f"{where} has weights as pickles only ({pickles[0]}); this engine reads safetensors")
    raise UnsupportedModel(f"{where} has no weights: no safetensors and no GGUF file")


def _weight_files(directory: Path, files: set[str]) -> set[str]:
    if _INDEX_NAME in files:
        weight_map = _read_object(directory / _INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise DamagedModel(f"{directory / _INDEX_NAME} has no weight_map")
        shards = {str(name) for name in weight_map.values()}
        for shard in sorted(shards):
            if not is_inside(shard):
                raise DamagedModel(f"{directory / _INDEX_NAME} names a file outside of the directory: {shard!r}")
            if not (directory / shard).is_file():
                raise DamagedModel(f"{directory} is incomplete: {shard}, named in {_INDEX_NAME}, is missing")
        return shards
    if _SINGLE_NAME in files:
        return {_SINGLE_NAME}
    found = {path for path in files if path.endswith(".safetensors")}
    if not found:
        check_weights_offered(str(directory), [path.name for path in directory.iterdir()])
    return found


def _read_object(path: Path) -> dict[str, Any]:
    return _parse_object(path.read_bytes(), path)


def _parse_object(text: bytes, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise DamagedModel(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise DamagedModel(f"{path} should hold a JSON object")
    return value
