"""What files hold, on disk: written aside and put in place whole, so that no reader sees a part of a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

_STALE_S = 3600.0
"""What nothing refers to is removed when nobody has written to it for so long."""


class FileBytes:
    """One directory of files, uploads and batches. Every path in it is made of ids of our own, never of a client's.

    Args:
        root: Made if missing; only its owner may look inside.
    """

    def __init__(self, root: Path) -> None:
        self._files = root / "files"
        self._uploads = root / "uploads"
        self._batches = root / "batches"
        for directory in (root, self._files, self._uploads, self._batches):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, file_id: str) -> Path:
        """Where a file is."""
        return self._files / file_id

    def batch_directory(self, batch_id: str) -> Path:
        """Where all is that a batch in work has."""
        return self._batches / batch_id

    def draft(self) -> Draft:
        """A new file that is about to be written."""
        return Draft(self._uploads / uuid.uuid4().hex)

    def remove(self, file_id: str) -> None:
        """Removes a file if it is there; whoever reads it reads on."""
        self.path(file_id).unlink(missing_ok=True)

    def remove_batch(self, batch_id: str) -> None:
        """Removes what a batch in work had."""
        shutil.rmtree(self.batch_directory(batch_id), ignore_errors=True)

    def stale_files(self) -> list[str]:
        """Ids of files that were written a while ago."""
        return _stale(self._files)

    def stale_batches(self) -> list[str]:
        """Ids of batches that were begun a while ago and may be in work."""
        return _stale(self._batches)

    def remove_stale_uploads(self) -> None:
        """Removes what was left of uploads whose process ended."""
        for name in _stale(self._uploads):
            (self._uploads / name).unlink(missing_ok=True)


def _stale(directory: Path) -> list[str]:
    before_s = time.time() - _STALE_S
    found = []
    for entry in os.scandir(directory):
        with contextlib.suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_mtime < before_s:
                found.append(entry.name)
    return found


class Draft:
    """A file that is being written, and gone at the end of the `with` unless it was put in place. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self.size_bytes = 0

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """Appends.

        Raises:
            OSError: The disk is full, say.
        """
        self._file.write(data)
        self.size_bytes += len(data)

    def place(self, path: Path) -> None:
        """Puts the whole file where it belongs, safe from a crash of the machine.

        Raises:
            OSError: The disk is full, say.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._path, path)
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name of a file, or a copy where the file system has no such names. Nothing happens if it is there.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: It cannot be copied.
    """
    if target.exists():
        return
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except FileNotFoundError:
        raise
    except OSError:
        with Draft(target.with_suffix(f".{uuid.uuid4().hex}")) as draft:
            for data in _chunks(source):
                draft.write(data)
            draft.place(target)


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(2**20):
            yield data
