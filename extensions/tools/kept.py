"""Connections that are kept for the next request, each by itself.

A pool of `httpx2` looks at all of its connections, and asks the system about those that wait, whenever a request begins
or ends: with a hundred requests at once that costs more than the requests. Here a connection is taken and given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from ssl import SSLContext

import httpx2

KEPT_S = 30.0
"""A connection that nobody used for that long is closed."""

_Origin = tuple[str, str, int | None]


@dataclass(eq=False, slots=True)
class _Line:
    """What holds one connection at most, and makes another if that was closed.

    Attributes:
        origin: Where it leads.
        transport: What sends.
        idle_at: When it was given back, on the clock of the event loop.
    """

    origin: _Origin
    transport: httpx2.AsyncHTTPTransport
    idle_at: float = 0.0


class KeptConnections(httpx2.AsyncBaseTransport):
    """Sends each request over a connection that is free, or over a new one; there is no limit to how many are in use.

    Args:
        ssl: How servers are verified; shared, for making one takes long.
        keeps: Connections that wait for the next request at most; the one that was used last is taken first, and the
            one that was not used for longest makes room.
        kept_s: See `KEPT_S`.
    """

    def __init__(self, *, ssl: SSLContext, keeps: int, kept_s: float = KEPT_S) -> None:
        self._ssl = ssl
        self._keeps = keeps
        self._kept_s = kept_s
        self._busy: set[_Line] = set()
        self._idle: list[_Line] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def num_idle(self) -> int:
        """How many wait."""
        return len(self._idle)

    @property
    def num_busy(self) -> int:
        """How many are in use."""
        return len(self._busy)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends one request.

        Raises:
            httpx2.TransportError: It does not arrive, or no answer comes.
        """
        line = self._take((request.url.scheme, request.url.host, request.url.port))
        try:
            response = await line.transport.handle_async_request(request)
        except BaseException:
            self._busy.discard(line)
            self._close(line)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Answer(response.stream, lambda is_clean: self._give_back(line, is_clean))
        return response

    async def aclose(self) -> None:
        """Closes all connections, those in use too. Idempotent."""
        self._is_closed = True
        self._stop_timer()
        for line in (*self._busy, *self._idle):
            self._close(line)
        self._busy.clear()
        self._idle.clear()
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    def _take(self, origin: _Origin) -> _Line:
        for at in range(len(self._idle) - 1, -1, -1):
            if self._idle[at].origin == origin:
                line = self._idle.pop(at)
                break
        else:
            keeps = min(self._keeps, 1)
            limits = httpx2.Limits(max_connections=1, max_keepalive_connections=keeps, keepalive_expiry=self._kept_s)
            line = _Line(origin, httpx2.AsyncHTTPTransport(verify=self._ssl, trust_env=False, limits=limits))
        self._busy.add(line)
        return line

    def _give_back(self, line: _Line, is_clean: bool) -> None:
        if line not in self._busy:
            return
        self._busy.discard(line)
        if self._is_closed or not self._keeps or not is_clean:
            self._close(line)
            return
        loop = asyncio.get_running_loop()
        line.idle_at = loop.time()
        self._idle.append(line)
        if len(self._idle) > self._keeps:
            self._close(self._idle.pop(0))
        if self._timer is None:
            self._timer = loop.call_later(self._kept_s, self._close_old)

    def _close_old(self) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._kept_s
        while self._idle and self._idle[0].idle_at <= oldest:
            self._close(self._idle.pop(0))
        if self._idle:
            self._timer = loop.call_at(self._idle[0].idle_at + self._kept_s, self._close_old)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self, line: _Line) -> None:
        """Closes one beside everything else: whoever is cancelled meanwhile leaves none open."""
        task = asyncio.ensure_future(line.transport.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Answer(httpx2.AsyncByteStream):
    """The body of an answer; its connection is free when it is closed.

    Args:
        inner: The body.
        on_close: Told whether it was closed in order: if not, nobody knows in what state its connection is.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, on_close: Callable[[bool], None]) -> None:
        self._inner = inner
        self._on_close = on_close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            yield piece

    async def aclose(self) -> None:
        is_clean = False
        try:
            await self._inner.aclose()
            is_clean = True
        finally:
            self._on_close(is_clean)
