"""The journal of one run on its way to the store: collected here, sent with the events that it led to."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from extensions.journal.entries import Ended, Entry, packed
from extensions.journal.gate import Gate
from gateway.state.run_store import NO_PART, Part

FULL = "its journal has reached its size"


class RunJournal:
    """Implements `extensions.journal.journal.Sink`. Belongs to one event loop.

    Args:
        run_id: Of the run.
        max_bytes: Most that it has in all.
        num_bytes: That it has already.
        num_parts: Of the store that it has already.

    Attributes:
        name: Of the run.
        gate: Through which effects of the run begin.
        fixed: Why the run cannot be gone on with from here; empty if it can.
        on_news: Called in the event loop when there is something to send.
        on_wait: Called in the event loop when somebody waits for it to be there.
    """

    def __init__(self, run_id: str, max_bytes: int, *, num_bytes: int = 0, num_parts: int = 0) -> None:
        self.name = run_id
        self.gate = Gate()
        self.fixed = ""
        self.on_news: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], None] = lambda: None
        self._max_bytes = max_bytes
        self._num_bytes = num_bytes
        self._number = num_parts
        self._parts: list[bytes] = []
        self._sending: list[bytes] = []
        self._num_put = 0
        self._num_stored = 0
        self._is_told = False
        self._is_fixed_there = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def put(self, entry: Entry) -> None:
        """See `Sink.put`."""
        with self._lock:
            if self.fixed:
                return
            self._add(entry)
            if self._is_told:
                return
            self._is_told = True
        self._loop.call_soon_threadsafe(self._tell)

    def _add(self, entry: Entry) -> None:
        if isinstance(entry, Ended):
            self.fixed = entry.reason
            return
        try:
            data = packed(entry)
        except (TypeError, ValueError, OverflowError) as error:
            self.fixed = f"it was told what cannot be written down: {error}"[:300]
            return
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            self.fixed = FULL
            return
        self._parts.append(data)
        self._num_put += 1

    def _tell(self) -> None:
        self._is_told = False
        if self.fixed:
            self._release(self._num_put)
        self.on_news()

    async def commit(self) -> None:
        """See `Sink.commit`."""
        if self.fixed or self._num_stored == self._num_put:
            return
        stored: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((self._num_put, stored))
        self.on_wait()
        await stored

    # -- for whoever sends it ---------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """There is something to send."""
        return not self._is_fixed_there if self.fixed else bool(self._parts or self._sending)

    @property
    def is_sending(self) -> bool:
        """Something was taken, and is not known to be stored."""
        return bool(self._sending)

    def take(self) -> Part:
        """What is to be sent next: with it, all that was put so far; the same again until it is said to be stored."""
        with self._lock:
            if self.fixed:
                return Part(fixed=self.fixed)
            if not self._sending and self._parts:
                self._sending, self._parts = self._parts, []
                self._number += 1
            if not self._sending:
                return NO_PART
            return Part(number=self._number, data=b"".join(self._sending))

    def note_stored(self) -> None:
        """What was taken last is there."""
        self._is_fixed_there = bool(self.fixed)
        self._num_stored += len(self._sending)
        self._sending = []
        self._release(self._num_stored)

    def _release(self, number: int) -> None:
        while self._waiting and self._waiting[0][0] <= number:
            _, stored = self._waiting.popleft()
            if not stored.done():
                stored.set_result(None)
