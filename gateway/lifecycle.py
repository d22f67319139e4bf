"""Taking requests, and ceasing to: what is in flight, and draining before the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import NotReady


class Lifecycle:
    """Counts the work in flight of one process and says when no more is taken. Belongs to one event loop.

    Args:
        on_change: Told the number in flight whenever it changes.
    """

    def __init__(self, on_change: Callable[[int], None] = lambda _: None) -> None:
        self._num_active = 0
        self._on_change = on_change
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_draining = False

    @property
    def num_active(self) -> int:
        """Requests in flight, streams that are still open included."""
        return self._num_active

    def begin_drain(self) -> None:
        """Takes no new work from now on. Idempotent."""
        self.is_draining = True

    def enter(self) -> None:
        """Counts one more request in flight.

        Raises:
            NotReady: The process is draining.
        """
        if self.is_draining:
            raise NotReady("The server is shutting down.")
        self._num_active += 1
        self._on_change(self._num_active)
        self._idle.clear()

    def leave(self) -> None:
        """Counts one request less."""
        self._num_active -= 1
        self._on_change(self._num_active)
        if not self._num_active:
            self._idle.set()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight; False if something still is after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


class Admission:
    """ASGI middleware: counts POST requests in flight and refuses them while the process drains."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._lifecycle.enter()
        try:
            await self._app(scope, receive, send)
        finally:
            self._lifecycle.leave()
