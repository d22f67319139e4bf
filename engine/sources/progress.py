"""How long transfers tell their progress: a small protocol, a silent double, and a watcher of growing files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

POLL_S = 0.2
"""How often a watched directory is measured."""


class Progress(Protocol):
    """Told about one transfer at a time; calls may come from a second thread, never from two at once."""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """A stage starts; `total_bytes` is None where the size is unknown."""
        ...

    def update(self, done_bytes: int) -> None:
        """Bytes of the current stage so far."""
        ...

    def end(self) -> None:
        """The current stage is over, whether or not it succeeded."""
        ...

    def note(self, message: str) -> None:
        """One line for people."""
        ...


class SilentProgress:
    """Ignores everything."""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Nothing to show."""

    def update(self, done_bytes: int) -> None:
        """Nothing to show."""

    def end(self) -> None:
        """Nothing to show."""

    def note(self, message: str) -> None:
        """Nothing to show."""


@contextmanager
def stage(progress: Progress, label: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Runs one stage; yields the function that takes the bytes done so far."""
    progress.begin(label, total_bytes)
    try:
        yield progress.update
    finally:
        progress.end()


@contextmanager
def watch_directory(
    progress: Progress,
    label: str,
    directory: Path,
    total_bytes: int | None,
    *,
    measure: Callable[[Path], int] | None = None,
) -> Iterator[None]:
    """Runs one stage whose progress is the size of the files under `directory`.

    For transfers made by others (a child process, a library) that write there: needs nothing of their interface.

    Args:
        progress: Told about the stage.
        label: What it is.
        directory: Where files grow.
        total_bytes: How large they will be; None if that is not known.
        measure: Bytes done, of the directory; `directory_bytes` if left out.
    """
    measure = measure or directory_bytes
    done = threading.Event()

    def poll(update: Callable[[int], None]) -> None:
        while not done.wait(POLL_S):
            update(measure(directory))

    with stage(progress, label, total_bytes) as update:
        watcher = threading.Thread(target=poll, args=(update,), name="watch-directory", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            update(measure(directory))


def directory_bytes(directory: Path) -> int:
    """Bytes of all files below; files that vanish meanwhile count as nothing."""
    return sum(_sizes(directory))


def largest_file_bytes(directory: Path) -> int:
    """Bytes of the largest file below, 0 if there is none: for one file of which whoever fetches it makes copies."""
    return max(_sizes(directory), default=0)


def _sizes(directory: Path) -> Iterator[int]:
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                yield os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
