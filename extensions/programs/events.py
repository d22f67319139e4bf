"""Events of a run on their way to whoever reads it."""

from __future__ import annotations

import asyncio
from collections import deque

from extensions.programs.request import RunEvent

MAX_WAITING = 256
"""Events that may wait for their reader; a script that emits more waits."""


class RunEvents:
    """What a run has to tell, in order, for one reader."""

    def __init__(self) -> None:
        self._waiting: deque[RunEvent] = deque()
        # Awaited by the reader while there is nothing to read; an `asyncio.Event` costs twice as much.
        self._news: asyncio.Future[None] | None = None
        self._made_room = asyncio.Event()
        self._is_over = False
        self._is_unread = False

    @property
    def has_room(self) -> bool:
        """False while so many events wait that whoever has more waits too."""
        return len(self._waiting) < MAX_WAITING

    def put(self, event: RunEvent) -> None:
        """Tells at once."""
        if not self._is_unread:
            self._waiting.append(event)
            self._wake()

    async def send(self, event: RunEvent) -> None:
        """Tells when there is room, or when the run ends."""
        while not (self.has_room or self._is_over):
            self._made_room.clear()
            await self._made_room.wait()
        self.put(event)

    async def next(self) -> RunEvent | None:
        """The next event; None when the run has ended and all is read."""
        while not self._waiting:
            if self._is_over:
                return None
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None
        event = self._waiting.popleft()
        if self.has_room:
            self._made_room.set()
        return event

    def discard(self) -> None:
        """Nobody reads: what comes is dropped, and costs nothing."""
        self._is_unread = True
        self._waiting.clear()
        self._made_room.set()

    def end(self) -> None:
        """The run ends: nobody waits for more, nor for room. Idempotent."""
        self._is_over = True
        self._made_room.set()
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
