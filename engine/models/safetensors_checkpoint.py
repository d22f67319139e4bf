"""Weights of a Hugging Face directory with one or several safetensors files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig, generation_defaults
from engine.models.fingerprint import fingerprint
from engine.models.hf_config import read_json

_SHARD = re.compile(r"model-\d+-of-(\d+)\.safetensors")
_BASE_PREFIX = "model."
_HEAD = "lm_head.weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


class SafetensorsCheckpoint:
    """A Hugging Face directory as a checkpoint; see `Checkpoint`.

    Models that were only made to embed are often stored without their head, and then without the name of the part
    that holds all the rest; here every tensor goes by its whole name.
    """

    def __init__(self, directory: Path) -> None:
        """Reads configuration and file headers.

        Raises:
            ModelLoadError: A file is missing, damaged or unsupported; names it.
        """
        self.directory = directory
        self.config = ModelConfig.from_directory(directory)
        self.defaults = generation_defaults(directory)
        expected, self._files = _weight_files(directory)
        self._names_by_file: dict[Path, list[str]] = {}
        for file in self._files:
            with _open(file) as opened:
                self._names_by_file[file] = sorted(opened.keys())
        stored = {name: file for file, names in self._names_by_file.items() for name in names}
        for name, file in expected.items():
            if name not in self._names_by_file[file]:
                raise ModelLoadError(f"{file}: tensor {name!r}, which the index places here, is missing")
        is_base = not any(name.startswith(_BASE_PREFIX) or name == _HEAD for name in stored)
        self._prefix = _BASE_PREFIX if is_base else ""
        self._file_by_name = {self._prefix + name: file for name, file in stored.items()}
        if is_base and not self.config.tied_embeddings:
            self.config = replace(self.config, tied_embeddings=True, has_head=False)

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._file_by_name)

    def tensors(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every tensor as stored, mapped from its file; see `Checkpoint.tensors`."""
        for file, names in self._names_by_file.items():
            with _open(file) as opened:
                for name in names:
                    tensor = _read(opened, file, name)
                    if tensor.dtype not in _FLOATS:
                        raise ModelLoadError(f"{file}: tensor {name!r}: dtype {tensor.dtype} is not supported")
                    yield self._prefix + name, tensor

    def fingerprint(self) -> str:
        """Hex digest, the same for the same content."""
        return fingerprint(self.config, self._files)

    def describe(self, name: str) -> str:
        """Where a tensor lies, for messages."""
        return f"{self._file_by_name.get(name, self.directory)}: tensor {name.removeprefix(self._prefix)!r}"


def _weight_files(directory: Path) -> tuple[dict[str, Path], list[Path]]:
    """Finds the weight files, and which tensors an index expects where.

    Raises:
        ModelLoadError: There are none, or some are missing.
    """
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return {}, [single]
    if index.is_file():
        expected = _read_index(index)
        files = sorted(set(expected.values()))
    else:
        expected, files = {}, _unlisted_shards(directory)
    for file in files:
        if not file.is_file():
            raise ModelLoadError(f"{file}: no such file, though the model has weights there")
    return expected, files


def _read_index(index: Path) -> dict[str, Path]:
    weight_map = read_json(index).nested("weight_map")
    if weight_map is None or not weight_map.names():
        raise ModelLoadError(f"{index}: key 'weight_map' is missing or empty")
    expected = {}
    for name in weight_map.names():
        file = weight_map.text(name)
        if Path(file).name != file:
            weight_map.fail(name, f"names {file!r}, which is no file of this directory")
        expected[name] = index.parent / file
    return expected


def _unlisted_shards(directory: Path) -> list[Path]:
    """Shards that no index lists; their names say how many there must be."""
    shards = sorted(path for path in directory.iterdir() if _SHARD.fullmatch(path.name))
    if not shards:
        others = sorted(path.name for path in directory.glob("*.bin")) or "nothing"
        raise ModelLoadError(f"{directory}: no model.safetensors, nor an index of shards; found {others}")
    match = _SHARD.fullmatch(shards[0].name)
    total = match[1] if match else "1"
    return [directory / f"model-{number:0{len(total)}d}-of-{total}.safetensors" for number in range(1, int(total) + 1)]


def _open(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file}: not a whole safetensors file: {error}") from error


def _read(opened: safe_open, file: Path, name: str) -> torch.Tensor:
    get_tensor: Callable[[str], torch.Tensor] = opened.get_tensor
    try:
        return get_tensor(name)
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ModelLoadError(f"{file}: tensor {name!r}: cannot be read: {error}") from error
