"""Processor time by part, for code that was not written to be measured: methods are wrapped while a run lasts."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Stopwatch:
    """Counts the time each wrapped function takes on its thread's processor, that of wrapped callees left out.

    Example:
        with Stopwatch() as watch:
            watch.wrap(Scheduler, "schedule")
            ...
        watch.totals_ns["schedule"]

    Attributes:
        totals_ns: By name.
    """

    def __init__(self) -> None:
        self.totals_ns: defaultdict[str, int] = defaultdict(int)
        self._inner = threading.local()
        self._restore: list[Callable[[], None]] = []

    def wrap(self, owner: Any, attribute: str, name: str | None = None) -> None:
        """Replaces a function of a class or module; several may share a name."""
        original = getattr(owner, attribute)
        label = name or attribute.strip("_")

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = getattr(self._inner, "ns", 0)
            self._inner.ns = 0
            start = time.thread_time_ns()
            try:
                return original(*args, **kwargs)
            finally:
                spent = time.thread_time_ns() - start
                self.totals_ns[label] += spent - self._inner.ns
                self._inner.ns = outer + spent

        setattr(owner, attribute, timed)
        self._restore.append(lambda: setattr(owner, attribute, original))

    def clear(self) -> None:
        """Starts again at zero."""
        self.totals_ns.clear()

    def __enter__(self) -> Stopwatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for restore in self._restore:
            restore()
