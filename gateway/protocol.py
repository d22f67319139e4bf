"""HTTP/1 on a connection: uvicorn's, with its own refusals in the error shape and plain streams for HTTP/1.0."""

from __future__ import annotations

import sys
from http import HTTPStatus
from typing import Any

import httptools
import msgspec
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.errors import BadRequest, to_reply
from gateway.middleware import request_id_of
from gateway.sse import BODY_WRITER

MAX_HEAD_BYTES = 64 * 1024
"""Longest request line and headers together; the parser alone would collect them without end."""

LINGER_S = 2.0
"""Seconds that what a refused client still sends is read and dropped: closing before would reset the connection, and
the client might never see the answer."""


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._num_head_bytes = 0
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        """Parses what came; drops it once the connection has been refused."""
        if self._is_refused:
            return
        super().data_received(data)
        if self._is_in_head and not self._is_refused and not self.transport.is_closing():
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._refuse(HTTPException(431, f"The request's head is longer than {MAX_HEAD_BYTES} bytes."))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._is_in_head, self._num_head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Its body begins."""
        super().on_headers_complete()
        self._is_in_head = False

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP; called while the parser's exception is handled."""
        self._refuse(_explain(sys.exception()))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _Unframed(app, cycle)
        else:
            extensions: dict[str, Any] = cycle.scope.setdefault("extensions", {})
            extensions[BODY_WRITER] = ChunkWriter(cycle)
        super()._start_asgi_task(cycle, app)

    def _refuse(self, error: Exception) -> None:
        """Answers and closes; only closes where an answer is on its way, which more bytes would become part of."""
        if self.cycle is not None and not self.cycle.response_complete:
            is_started = self.cycle.response_started
            # Whoever still works on the request learns that nobody waits for it.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if is_started:
                self.transport.close()
                return
        self._is_refused = True
        self.transport.write(_response(error, self.headers or []))
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)


class ChunkWriter:
    """Implements `gateway.sse.BodyWriter` on a connection whose response has begun and is sent in chunks.

    Uvicorn's `send` and the middleware around it take a message for each part and look at it anew: a fifth of what a
    streamed token costs.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow

    @property
    def is_free(self) -> bool:
        """See `BodyWriter.is_free`."""
        return not self._flow.write_paused

    def write(self, data: bytes) -> bool:
        """See `BodyWriter.write`."""
        cycle = self._cycle
        if cycle.disconnected:
            return True
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return not self._flow.write_paused

    async def drain(self) -> None:
        """See `BodyWriter.drain`."""
        if not self._cycle.disconnected:
            await self._flow.drain()


class _Unframed:
    """Streams to a client of HTTP/1.0, which knows no chunks: the body ends where the connection does."""

    def __init__(self, app: ASGIApp, cycle: RequestResponseCycle) -> None:
        self._app = app
        self._cycle = cycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_unframed = False

        async def send_unframed(message: Message) -> None:
            nonlocal is_unframed
            if message["type"] == "http.response.start":
                is_unframed = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                if is_unframed:
                    self._cycle.chunked_encoding = False
            elif is_unframed:
                # To uvicorn each part is a body of known length.
                self._cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, send_unframed)


def _explain(error: BaseException | None) -> Exception:
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return HTTPException(405, headers={"Allow": "GET, HEAD, POST, OPTIONS"})
    if isinstance(error, httptools.HttpParserInvalidURLError | httptools.HttpParserCallbackError):
        return BadRequest("The request's URL is not valid.")
    return BadRequest(f"The request is not valid HTTP/1.1: {error}.")


def _response(error: Exception, headers: list[tuple[bytes, bytes]]) -> bytes:
    reply = to_reply(error)
    body = msgspec.json.encode(reply.body)
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        *(f"{name.lower()}: {value}" for name, value in reply.headers.items()),
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {request_id_of(headers).decode()}",
        "connection: close",
        "\r\n",
    ]
    return "\r\n".join(lines).encode() + body
