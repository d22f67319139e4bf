"""Signals as news that a loop waits for, instead of code that runs in the middle of something."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Collects requests to stop, and wakes a waiting loop for them and for children that end.

    Used as a context in the main thread; earlier handlers come back when it is left.

    Attributes:
        num_stops: Requests to stop so far: the first is meant politely, a second one is not.
    """

    def __init__(self) -> None:
        self.num_stops = 0
        self._reader, self._writer = -1, -1
        self._earlier: dict[int, Any] = {}
        self._earlier_wakeup = -1

    def wait(self, timeout_s: float) -> None:
        """Sleeps until a signal comes, at most `timeout_s`."""
        if select.select([self._reader], [], [], timeout_s)[0]:
            with contextlib.suppress(BlockingIOError):
                os.read(self._reader, 4096)

    def __enter__(self) -> SignalInbox:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._earlier_wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started by `nohup`: the terminal may go away
            self._earlier[number] = signal.signal(number, self._note_stop)
        # Without a handler of Python's own the wake-up descriptor is not written to.
        self._earlier[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda number, frame: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._earlier_wakeup)
        os.close(self._reader)
        os.close(self._writer)

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self.num_stops += 1
