"""Folders of the store, and how a model enters and leaves them: built aside under a lock, then renamed into place.

root/models/<folder>/        a complete model: its files, and `model.json`
root/partial/<folder>/<key>  a model that is being made, or one that is being removed
root/locks/<folder>.lock     held by whoever changes that model
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.sources.errors import DamagedModel, StoreBusy, UnsupportedModel
from engine.sources.locking import lock_file
from engine.sources.manifest import sync_path
from engine.sources.reference import directory_name

STALE_PARTIAL_S = 7 * 24 * 3600
"""Age after which an unfinished pull of some other model is removed."""


class Workspace:
    """Paths below one root, and the moves between them. Callers hold `lock(name)` while they change a model."""

    def __init__(self, root: Path) -> None:
        self.models = root / "models"
        self._partial = root / "partial"
        self._locks = root / "locks"

    def directory(self, name: str) -> Path:
        """Where a complete model of this name lies, if there is one."""
        return self.models / directory_name(name)

    @contextmanager
    def lock(self, name: str, *, wait: bool = True, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Holds the lock of one name.

        Raises:
            StoreBusy: `wait` is false and another process holds it.
        """
        with lock_file(self._lock_path(directory_name(name)), wait=wait, on_wait=on_wait):
            yield

    @contextmanager
    def building(self, name: str, key: str, *, resumable: bool = False) -> Iterator[Path]:
        """Yields a folder to build in, and removes it if that fails.

        Args:
            name: Name of the model.
            key: Tells attempts apart: what an earlier attempt with the same key left is still there.
            resumable: Keep the folder when the attempt was interrupted or the other side failed, for the next attempt.
        """
        partial = self._open_partial(name, key)
        try:
            yield partial
        except (DamagedModel, UnsupportedModel):
            self._discard_partial(name)
            raise
        except BaseException:
            if not resumable:
                self._discard_partial(name)
            raise

    def publish(self, name: str, partial: Path) -> Path:
        """Renames a finished folder into place; an older model of the name goes away."""
        directory = self.directory(name)
        self.models.mkdir(parents=True, exist_ok=True)
        if directory.exists():
            self._set_aside(name)
        os.rename(partial, directory)
        sync_path(self.models)
        self._discard_partial(name)
        return directory

    def remove(self, name: str) -> None:
        """Takes a model away: gone from the list at once, then from the disk."""
        self._set_aside(name)
        self._discard_partial(name)

    def sweep(self, now: float | None = None) -> None:
        """Removes unfinished work of any name that nobody has touched for `STALE_PARTIAL_S`."""
        limit = (time.time() if now is None else now) - STALE_PARTIAL_S
        if not self._partial.is_dir():
            return
        for folder in self._partial.iterdir():
            if _newest_mtime(folder) > limit:
                continue
            try:
                with lock_file(self._lock_path(folder.name), wait=False):
                    shutil.rmtree(folder, ignore_errors=True)
            except StoreBusy:
                continue

    def _open_partial(self, name: str, key: str) -> Path:
        parent = self._partial / directory_name(name)
        parent.mkdir(parents=True, exist_ok=True)
        for other in parent.iterdir():
            if other.name != key:
                shutil.rmtree(other, ignore_errors=True)
        partial = parent / key
        partial.mkdir(exist_ok=True)
        return partial

    def _discard_partial(self, name: str) -> None:
        shutil.rmtree(self._partial / directory_name(name), ignore_errors=True)

    def _set_aside(self, name: str) -> None:
        parent = self._partial / directory_name(name)
        parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.directory(name), parent / f"old-{uuid.uuid4().hex}")

    def _lock_path(self, folder: str) -> Path:
        return self._locks / f"{folder}.lock"


def _newest_mtime(folder: Path) -> float:
    times = [folder.stat().st_mtime]
    for path in folder.rglob("*"):
        try:
            times.append(path.lstat().st_mtime)
        except FileNotFoundError:
            continue
    return max(times)
