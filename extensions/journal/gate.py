"""Where effects of a run begin: closed before the run is handed over, so that none is cut off in the middle."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextvars import ContextVar


class Gate:
    """Counts effects under way. Belongs to one event loop."""

    def __init__(self) -> None:
        self._num_inside = 0
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()
        self._opened = asyncio.Event()
        self._opened.set()

    @property
    def is_closed(self) -> bool:
        """No effect begins now."""
        return self._closed.is_set()

    def close(self) -> None:
        """No effect begins from now on: those that are about to wait. Idempotent."""
        self._closed.set()
        self._opened.clear()

    def open(self) -> None:
        """They may begin after all."""
        self._closed.clear()
        self._opened.set()

    async def closed(self) -> None:
        """Waits until it is closed."""
        await self._closed.wait()

    async def opened(self) -> None:
        """Waits until it is open."""
        await self._opened.wait()

    async def calm(self) -> None:
        """Waits until no effect is under way."""
        while self._num_inside:
            self._changed.clear()
            await self._changed.wait()

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Surrounds an effect; what an effect leads to is a part of it."""
        if _INSIDE.get() is self:
            yield
            return
        while self.is_closed:
            await self._opened.wait()
        token = _INSIDE.set(self)
        self._num_inside += 1
        try:
            yield
        finally:
            self._num_inside -= 1
            self._changed.set()
            with contextlib.suppress(ValueError):  # it ends in another context than it began in
                _INSIDE.reset(token)


_INSIDE: ContextVar[Gate | None] = ContextVar("wye_gate", default=None)
