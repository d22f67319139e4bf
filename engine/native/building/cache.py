"""Files that were compiled before, each under a digest of all that it was made from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

MAX_AGE_S = 30 * 24 * 3600
"""Files that no build asked for in this time are removed."""


class Cache:
    """A directory of finished files. Several builds may use it at once.

    Args:
        directory: Where they lie; must exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def fetch(self, key: str, suffix: str, make: Callable[[Path], None]) -> Path:
        """The file of a key; calls `make` with a path to write to if it is not there yet."""
        path = self._directory / f"{key}{suffix}"
        if path.exists():
            os.utime(path)
            return path
        handle, name = tempfile.mkstemp(suffix=suffix, prefix=".making-", dir=self._directory)
        os.close(handle)
        unfinished = Path(name)
        try:
            make(unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        return path

    def prune(self) -> None:
        """Removes what was not asked for in a long time."""
        oldest_s = time.time() - MAX_AGE_S
        for path in self._directory.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another build may prune too
                if path.is_file() and path.stat().st_mtime < oldest_s:
                    path.unlink()


def digest(*parts: str | bytes) -> str:
    """Name for what is made from these parts, in this order."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Where compiled files are kept: `WYE_NATIVE_CACHE`, or `wye/native` in the user's cache.

    Raises:
        RuntimeError: The user has no home directory.
    """
    asked = environ.get("WYE_NATIVE_CACHE")
    if asked:
        return Path(asked).expanduser()
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "wye" / "native"


@contextlib.contextmanager
def open_cache(environ: Mapping[str, str]) -> Iterator[Cache]:
    """The cache; where it cannot be written to, one for this build alone."""
    try:
        directory = cache_directory(environ)
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(directory)
    except (OSError, RuntimeError):
        with tempfile.TemporaryDirectory() as own:
            yield Cache(Path(own))
        return
    cache = Cache(directory)
    yield cache
    cache.prune()
