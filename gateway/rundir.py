"""A private directory for the life of one server: the engine's socket, the workers' shared metrics."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "wye-"
_LOCK = "lock"
_MAX_PATH_CHARS = 80
"""The system limits a socket's path to about 100."""


@contextmanager
def run_directory(parent: Path | None = None) -> Iterator[Path]:
    """Makes a directory and removes it afterwards; also removes those of servers that were killed.

    Args:
        parent: Where to make it; None is the system's directory for temporary files.
    """
    parent = parent or Path(tempfile.gettempdir())
    if len(str(parent)) > _MAX_PATH_CHARS:
        parent = Path("/tmp")
    _remove_abandoned(parent)
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    try:
        with open(path / "new-lock", "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            # Only under its final name is the lock looked at by others: never before it is held.
            os.rename(path / "new-lock", path / _LOCK)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Removes directories whose owner is gone: the system dropped its lock."""
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError), open(path / _LOCK, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
