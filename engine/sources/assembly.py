"""From a folder of files to a complete model: which files stay, what their digests are, the manifest at the end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.sources.errors import DamagedModel
from engine.sources.inspection import Inspection
from engine.sources.manifest import Manifest, describe_files, sync_path, write_manifest
from engine.sources.progress import Progress, stage


def bring_files(source: Path, paths: Iterable[str], target: Path) -> None:
    """Puts files of one directory into another: by hard link on the same file system, else by copy."""
    for path in paths:
        bring_file(source / path, target / path)


def bring_file(source: Path, target: Path) -> None:
    """Puts one file at another place as well: by hard link on the same file system, else by copy."""
    # Links are followed: the hub client's cache holds symbolic links to its blobs.
    origin = source.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(origin, target)
    except OSError:
        shutil.copyfile(origin, target)


def complete_model(
    directory: Path,
    inspection: Inspection,
    progress: Progress,
    *,
    name: str,
    source: str,
    revision: str,
    digests: Mapping[str, str | None],
) -> Manifest:
    """Checks the files against known digests, removes all others, and writes the manifest.

    Args:
        directory: Holds the files.
        inspection: Which of them are the model.
        progress: Told about the reading.
        name: Stored name.
        source: Where they came from.
        revision: What exactly was taken.
        digests: Hex digests known from elsewhere, by path; None where unknown.

    Raises:
        DamagedModel: A file differs from its digest.
    """
    total = sum((directory / path).stat().st_size for path in inspection.files)
    with stage(progress, f"checking {name}", total) as update:
        files = describe_files(directory, inspection.files, update)
    for file in files:
        expected = digests.get(file.path)
        if expected not in (None, file.sha256):
            raise DamagedModel(f"{source}: {file.path} has SHA-256 {file.sha256}, expected {expected}; it was not kept")
    _remove_others(directory, {file.path for file in files})
    manifest = Manifest(
        name=name,
        source=source,
        revision=revision,
        format=inspection.format,
        entry=inspection.entry,
        files=files,
        stored_at=time.time(),
    )
    for file in files:
        sync_path(directory / file.path)
    write_manifest(directory, manifest)
    return manifest


def _remove_others(directory: Path, keep: set[str]) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(directory).as_posix() not in keep:
            path.unlink()
