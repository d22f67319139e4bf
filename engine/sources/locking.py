"""One process at a time works on one stored model."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.sources.errors import StoreBusy


@contextmanager
def lock_file(path: Path, *, wait: bool, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds an exclusive lock; the system drops it when its holder dies, so no lock is ever stale.

    The file itself stays: removing it would let two processes hold locks of one name.

    Args:
        path: The lock's file; made if it is not there.
        wait: Wait for the holder (interruptible), or raise at once.
        on_wait: Called once before waiting.

    Raises:
        StoreBusy: `wait` is false and another holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise StoreBusy(f"another process works on this model (lock {path})") from None
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
