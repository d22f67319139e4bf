"""One request over HTTP and its answer, with it being known whether anything was sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx2

from extensions.tools.errors import ToolFailed

_STARTED = ("http11.send_request_headers.started", "http2.send_request_headers.started")


class McpLost(Exception):
    """The connection to an MCP server broke while something was asked."""


class McpForgotten(McpLost):
    """The server does not know the session any more, so it has done nothing of what was asked."""


class Sent:
    """Whether a request was sent, or began to be.

    Attributes:
        is_sent: So far.
    """

    def __init__(self) -> None:
        self.is_sent = False

    async def trace(self, name: str, info: dict[str, Any]) -> None:
        """Told by the connection what it does."""
        if name in _STARTED:
            self.is_sent = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What came back.

    Attributes:
        status: HTTP status.
        headers: All of them.
        content: At most as much as was allowed.
        is_cut: There was more.
    """

    status: int
    headers: httpx2.Headers
    content: bytes
    is_cut: bool

    @property
    def text(self) -> str:
        """The content as text; a character that was cut is left out."""
        charset = httpx2.Response(200, headers={"content-type": self.headers.get("content-type", "")}).charset_encoding
        try:
            text = self.content.decode(charset or "utf-8", "replace")
        except LookupError:
            text = self.content.decode("utf-8", "replace")
        return text.rstrip("�") if self.is_cut else text

    @property
    def is_json(self) -> bool:
        """Whether it says that it is JSON."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return kind == "application/json" or kind.endswith("+json")


async def send(transport: httpx2.AsyncBaseTransport, request: httpx2.Request, sent: Sent, max_bytes: int) -> Reply:
    """Sends a request and reads the answer, as much of it as is allowed.

    Raises:
        EgressDenied: The address must not be reached.
        ToolFailed: The answer is compressed, which was not asked for and hides its size.
        httpx2.TransportError: No answer came.
    """
    request.headers["accept-encoding"] = "identity"
    request.extensions = {**request.extensions, "trace": sent.trace}
    response = await transport.handle_async_request(request)
    response.request = request
    try:
        if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise ToolFailed("the answer is compressed, which was not asked for")
        content = bytearray()
        async for piece in response.aiter_raw():
            content += piece
            if len(content) > max_bytes:
                break
        is_cut = len(content) > max_bytes
        return Reply(
            status=response.status_code,
            headers=response.headers,
            content=bytes(content[:max_bytes]),
            is_cut=is_cut,
        )
    finally:
        await response.aclose()
