"""Event streams: framing, heartbeat, and the end of the work when the client goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from types import TracebackType
from typing import Any, Protocol, TypeVar

import anyio
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import ClientGone

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
"""Ends every stream, also one that failed."""

CLEANUP_S = 10.0
"""Seconds that ending abandoned work may take before the response stops waiting for it."""

BODY_WRITER = "wye.body_writer"
"""ASGI extension: a `BodyWriter` of the connection, for servers that have one."""

T = TypeVar("T")


class BodyWriter(Protocol):
    """Sends parts of a body once the response has begun, past all middleware: none has anything to say of those."""

    @property
    def is_free(self) -> bool:
        """False while `drain` is due before the next part."""
        ...

    def write(self, data: bytes) -> bool:
        """Hands a part to the connection; false if `drain` is due before the next one."""
        ...

    async def drain(self) -> None:
        """Waits until the client has read enough."""
        ...


class Closeable(Protocol):
    """Work that can be ended; idempotent."""

    async def aclose(self) -> None: ...


class Heartbeat(ServerSentEvent):
    """A comment ended by one newline: a blank line would make some clients dispatch an empty event."""

    def encode(self) -> bytes:
        return b": keep-alive\n"


class EventStreamResponse(EventSourceResponse):
    """Sends ready-framed events and ends `work` however the response ends, even before its first event.

    Args:
        events: Framed bytes; every event ends in a blank line. Closed at the end.
        work: Closed when the response is over, when the client goes away, or when a write takes too long.
        heartbeat_s: Seconds between heartbeats; 0 for none.
        send_timeout_s: Seconds one write may block.
        divert: Given the connection's writer, if it has one: who has it may write events past `events` while the next
            of those is waited for, and whenever that is free.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        work: Closeable,
        *,
        heartbeat_s: float,
        send_timeout_s: float,
        divert: Callable[[BodyWriter], None] | None = None,
    ) -> None:
        super().__init__(
            events,
            headers={"Cache-Control": "no-cache"},
            media_type="text/event-stream",
            ping=heartbeat_s,
            ping_message_factory=Heartbeat,
            sep="\n",
        )
        # The base class promises to keep the connection, which is the server's to say.
        del self.headers["connection"]
        self._events = events
        self._work = work
        self._divert = divert
        self._stall = StallWatch(send_timeout_s)
        self._writer: BodyWriter | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._writer = scope.get("extensions", {}).get(BODY_WRITER)
        try:
            with self._stall:
                await super().__call__(scope, receive, send)
        finally:
            await close_shielded(self._work)

    async def _stream_response(self, send: Send) -> None:
        # Leaner than the base class, which prepares for events of any kind and arms a timer for each.
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writer = self._writer or _PlainWriter(send)
        if self._writer is not None and self._divert is not None:
            self._divert(self._writer)
        async with aclosing(self._events):
            async for data in self._events:
                if not writer.is_free:
                    # Whoever wrote past `events` has filled it.
                    await self._drain(writer)
                if not writer.write(data):
                    await self._drain(writer)
        async with self._send_lock:
            self.active = False
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _drain(self, writer: BodyWriter) -> None:
        self._stall.begin()
        await writer.drain()
        self._stall.end()

    @staticmethod
    async def _listen_for_exit_signal() -> None:
        # The server drains by itself: streams are told nothing, they get the time to end.
        await anyio.sleep_forever()

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        self._stall.begin()
        await send(message)
        self._stall.end()


class _PlainWriter:
    """A `BodyWriter` on ASGI's own `send`: every part is drained at once."""

    is_free = True

    def __init__(self, send: Send) -> None:
        self._send = send
        self._data = b""

    def write(self, data: bytes) -> bool:
        self._data = data
        return False

    async def drain(self) -> None:
        await self._send({"type": "http.response.body", "body": self._data, "more_body": True})


class StallWatch:
    """Cancels the block it guards when one write takes too long: one timer a stream, looked at now and then.

    Args:
        limit_s: Seconds one write may take; noticed up to as much later.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._scope = anyio.CancelScope()
        self._num_begun = 0
        self._num_ended = 0
        self._stuck_at: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """A write begins."""
        self._num_begun += 1

    def end(self) -> None:
        """It has ended."""
        self._num_ended = self._num_begun

    def __enter__(self) -> None:
        self._scope.__enter__()
        self._look()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._timer is not None:
            self._timer.cancel()
        return self._scope.__exit__(kind, error, traceback)

    def _look(self) -> None:
        is_writing = self._num_begun != self._num_ended
        if is_writing and self._num_begun == self._stuck_at:
            log.warning("dropped a stream whose client did not read for %g s", self._limit_s)
            self._scope.cancel()
            return
        self._stuck_at = self._num_begun if is_writing else None
        self._timer = self._loop.call_later(self._limit_s, self._look)


async def close_shielded(work: Closeable) -> None:
    """Ends `work` even if the caller is being cancelled."""
    with anyio.move_on_after(CLEANUP_S, shield=True):
        await work.aclose()


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` while the client stays; the request body must have been read.

    Middleware may hide a disconnect from `Request.is_disconnected`, so this waits on `receive` itself.

    Raises:
        ClientGone: The client left; `work` has been cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
