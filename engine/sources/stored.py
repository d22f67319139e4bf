"""A model on this machine: one of the store, or files somewhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.sources.errors import SourceNotFound, UnsupportedModel
from engine.sources.inspection import inspect_gguf
from engine.sources.manifest import Manifest, ManifestFile


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A complete model of the store.

    Attributes:
        directory: Where its files lie.
        manifest: What they are.
    """

    directory: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The stored name."""
        return self.manifest.name

    @property
    def path(self) -> Path:
        """What the engine loads: a directory, or a GGUF file."""
        return self.directory if self.manifest.entry == "." else self.directory / self.manifest.entry


def missing_files(stored: StoredModel) -> list[ManifestFile]:
    """Files of a stored model that are gone, or whose length has changed."""

    def is_there(file: ManifestFile) -> bool:
        path = stored.directory / file.path
        return path.is_file() and path.stat().st_size == file.size_bytes

    return [file for file in stored.manifest.files if not is_there(file)]


def local_model(path: Path) -> Path:
    """Returns a path of this machine that looks like a model.

    Raises:
        SourceNotFound: Nothing is there.
        UnsupportedModel: It is neither a Hugging Face directory nor a GGUF file.
    """
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UnsupportedModel(f"{path} is no Hugging Face model directory: it has no config.json")
    elif path.is_file():
        inspect_gguf(path.parent, path.name)
    else:
        raise SourceNotFound(f"there is no file and no directory {path}")
    return path
