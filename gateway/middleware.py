"""What every request passes: paths, request ids, access log, error shape, body rules. Plain ASGI, streams untouched."""

from __future__ import annotations

import logging
import re
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import msgspec
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import BadRequest, BodyTooLarge, ErrorReply, UnsupportedMediaType
from gateway.verbs import allowed_methods

log = logging.getLogger(__name__)
access_log = logging.getLogger("gateway.access")

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_JSON_TYPE = re.compile(rb"application/([\w.-]+\+)?json\s*(;.*)?", re.IGNORECASE)
_STATELESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_PROBES = frozenset({"/health", "/ping", "/ready", "/metrics"})
"""Asked every few seconds by machines; worth a line only to whoever debugs."""

OPENAI_VERSION = b"2020-10-01"

Observer = Callable[[str, str, int, float], None]
"""Told of each finished request: method, route, status, seconds."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's `x-request-id` if that is sane, else a new one. It is a label only."""
    given = dict(headers).get(b"x-request-id", b"")
    return given if _SANE_ID.fullmatch(given) else b"req_" + uuid.uuid4().hex.encode()


class RequestLog:
    """Gives each request an id, says how long it took, and writes one access line when it is over."""

    def __init__(self, app: ASGIApp, *, access_log: bool, observe: Observer) -> None:
        self._app = app
        self._access_log = access_log
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.perf_counter()
        request_id = request_id_of(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id.decode("ascii")
        # Stays at what proxies call "client closed request" if nothing is ever sent.
        status = 499

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                took_ms = int((time.perf_counter() - start_s) * 1000)
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", request_id),
                    (b"openai-processing-ms", str(took_ms).encode()),
                    (b"openai-version", OPENAI_VERSION),
                ]
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._finish(scope, status, time.perf_counter() - start_s)

    def _finish(self, scope: Scope, status: int, took_s: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        self._observe(scope["method"], route, status, took_s)
        if self._access_log:
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "duration_ms": round(took_s * 1000, 1),
                "request_id": scope["state"]["request_id"],
                "client": scope["client"][0] if scope.get("client") else None,
            }
            level = logging.DEBUG if route in _PROBES else logging.INFO
            access_log.log(level, "%(method)s %(path)s %(status)d %(duration_ms).1f ms %(request_id)s", fields)


class TrailingSlash:
    """Treats `/path/` as `/path`: a redirect would lose the key in many clients."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and len(scope["path"]) > 1 and scope["path"].endswith("/"):
            # In place: the router writes the route into the scope, and the log outside reads it there.
            scope["path"] = scope["path"].rstrip("/") or "/"
        await self._app(scope, receive, send)


class ErrorBoundary:
    """Answers any exception in the error shape, as long as nothing has been sent."""

    def __init__(self, app: ASGIApp, to_reply: Callable[[Exception], ErrorReply]) -> None:
        self._app = app
        self._to_reply = to_reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def watched_send(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            if scope["type"] != "http" or has_started:
                raise
            reply = self._to_reply(error)
            if reply.status == 500:
                log.exception("request failed: %s %s", scope["method"], scope["path"])
            await send_reply(send, reply)


async def send_reply(send: Send, reply: ErrorReply) -> None:
    """Sends a whole error response."""
    body = msgspec.json.encode(reply.body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class PlainOptions:
    """Says which methods a path takes: to OPTIONS requests that are no CORS preflight, and with every 405."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS":
            await _answer_options(scope, send)
            return

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 405:
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"allow"]
                message["headers"] = [*headers, _allow(allowed_methods(scope))]
            await send(message)

        await self._app(scope, receive, send_allowed)


async def _answer_options(scope: Scope, send: Send) -> None:
    methods = allowed_methods(scope)
    if not methods:
        raise HTTPException(404)
    await send({"type": "http.response.start", "status": 204, "headers": [_allow(methods)]})
    await send({"type": "http.response.body", "body": b""})


def _allow(methods: list[str]) -> tuple[bytes, bytes]:
    return b"allow", ", ".join(methods).encode()


class RequestBody:
    """Holds request bodies to JSON and to a size, and unpacks gzip. Nothing beyond the limit is ever kept.

    Args:
        app: Gets the bodies.
        limit_bytes: Largest one.
        forms: Paths that take a form (multipart/form-data) instead, and the largest body of each.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int, forms: Mapping[str, int] = MappingProxyType({})) -> None:
        self._app = app
        self._limit_bytes = limit_bytes
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _STATELESS_METHODS:
            headers = dict(scope["headers"])
            limit_bytes = self._forms.get(scope["path"], self._limit_bytes)
            _check_content_type(headers.get(b"content-type", b""), is_form=scope["path"] in self._forms)
            if int(headers.get(b"content-length", b"0") or 0) > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            reader = _BodyReader(receive, limit_bytes, _inflater(headers.get(b"content-encoding", b"")))
            receive = reader.receive
        await self._app(scope, receive, send)


class _BodyReader:
    """An ASGI `receive` that counts, and unpacks if told to."""

    def __init__(self, receive: Receive, limit_bytes: int, inflater: zlib._Decompress | None) -> None:
        self._receive = receive
        self._left_bytes = limit_bytes
        self._limit_bytes = limit_bytes
        self._packed_bytes = 0
        self._inflater = inflater
        self._is_complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or self._is_complete:
            return message
        self._is_complete = not message.get("more_body", False)
        body = message.get("body", b"")
        if self._inflater is not None:
            body = self._inflate(body)
        self._left_bytes -= len(body)
        if self._left_bytes < 0:
            raise BodyTooLarge(self._limit_bytes)
        return {**message, "body": body}

    def _inflate(self, data: bytes) -> bytes:
        """Unpacks one or several members (RFC 1952, 2.2), no more than a byte beyond the limit."""
        self._packed_bytes += len(data)
        if self._packed_bytes > self._limit_bytes:
            raise BodyTooLarge(self._limit_bytes)
        body = bytearray()
        try:
            while data and len(body) <= self._left_bytes:
                if self._inflater is None or self._inflater.eof:
                    self._inflater = _new_inflater()
                body += self._inflater.decompress(data, self._left_bytes + 1 - len(body))
                data = self._inflater.unused_data
        except zlib.error:
            raise BadRequest("The request body is not valid gzip.", code="invalid_json") from None
        is_whole = self._inflater is not None and self._inflater.eof
        if self._is_complete and self._left_bytes >= len(body) and not is_whole:
            raise BadRequest("The request body is not one whole gzip stream.", code="invalid_json")
        return bytes(body)


def _new_inflater() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _check_content_type(value: bytes, *, is_form: bool) -> None:
    if is_form:
        if not value.strip().lower().startswith(b"multipart/form-data"):
            raise UnsupportedMediaType("The request body must have the header 'Content-Type: multipart/form-data'.")
    elif value and not _JSON_TYPE.fullmatch(value.strip()):
        raise UnsupportedMediaType("The request body must have the header 'Content-Type: application/json'.")


def _inflater(encoding: bytes) -> zlib._Decompress | None:
    match encoding.strip().lower():
        case b"" | b"identity":
            return None
        case b"gzip" | b"x-gzip":
            return _new_inflater()
        case _:
            raise UnsupportedMediaType("The request body may be compressed with gzip only.")
