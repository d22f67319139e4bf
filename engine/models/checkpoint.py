"""A model on disk, whatever its form: a configuration and named tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig
from engine.request import GenerationDefaults

SHAPE_PREFIX = "shape:"
"""`shape:NAME` asks for random weights of a known shape."""


class Checkpoint(Protocol):
    """Weights that can be streamed once into a model.

    Attributes:
        config: The decoder they belong to.
        defaults: Sampling values its authors recommend.
    """

    config: ModelConfig
    defaults: GenerationDefaults

    def names(self) -> set[str]:
        """Names of all tensors, as Hugging Face calls them."""
        ...

    def tensors(self, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields every tensor once; at most one is held in memory beside what the caller keeps.

        Args:
            dtype: What the caller will keep; a form that must convert anyway converts to this.
            device: Where the caller will keep it; a form that makes tensors anyway makes them there.

        Raises:
            ModelLoadError: A tensor is missing in its file, damaged, or of an unsupported kind.
        """
        ...

    def fingerprint(self) -> str:
        """Hex digest, the same for the same content."""
        ...

    def describe(self, name: str) -> str:
        """Where a tensor lies, for messages."""
        ...


def open_checkpoint(source: Path | str) -> Checkpoint:
    """Opens a Hugging Face directory, a GGUF file, or `shape:NAME`; reads headers only.

    Raises:
        ModelLoadError: There is nothing there, or it is damaged, of an unknown kind or an unsupported architecture.
    """
    # Each form brings its own library; only the one in use is imported.
    if isinstance(source, str) and source.startswith(SHAPE_PREFIX):
        from engine.models.shapes import RandomCheckpoint

        return RandomCheckpoint(source.removeprefix(SHAPE_PREFIX))
    path = Path(source)
    if path.is_dir():
        from engine.models.safetensors_checkpoint import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise ModelLoadError(f"{path}: no such file or directory")
    if path.suffix == ".gguf" or _starts_with(path, b"GGUF"):
        from engine.models.gguf_checkpoint import GGUFCheckpoint

        return GGUFCheckpoint(path)
    raise ModelLoadError(f"{path}: neither a Hugging Face directory nor a GGUF file")


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
