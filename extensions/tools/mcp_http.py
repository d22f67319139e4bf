"""How the MCP SDK reaches servers over HTTP: no further than allowed, and no more than allowed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from urllib.parse import urlsplit

import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID

from extensions.tools.egress import GuardedTransport
from extensions.tools.servers import McpServer

_MESSAGE_BYTES = 4 * 2**20


class _Measured(httpx2.AsyncBaseTransport):
    """A transport whose answers must not be longer than allowed; streams that the server may write to are not measured.

    Args:
        inner: What sends.
        max_bytes: Longest answer.
        on_forgotten: Called when the server does not know a session: that is what 404 means with one.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, max_bytes: int, on_forgotten: Callable[[], None]) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self._on_forgotten = on_forgotten

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            await response.aclose()
            raise httpx2.ReadError("the answer is compressed, which was not asked for", request=request)
        if response.status_code == 404 and MCP_SESSION_ID in request.headers:
            self._on_forgotten()
        if request.method == "POST":
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _MeasuredStream(response.stream, self._max_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _MeasuredStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._left = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._left -= len(piece)
            if self._left < 0:
                raise httpx2.ReadError("the answer is longer than allowed")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def http_client(
    server: McpServer,
    connect: Callable[[str, bool, int], GuardedTransport],
    on_forgotten: Callable[[], None],
) -> httpx2.AsyncClient:
    """What the SDK sends with.

    Args:
        server: To whom.
        connect: See `McpConnection`.
        on_forgotten: Called when the server says that it does not know the session.
    """
    host = urlsplit(server.url).hostname or ""
    guarded = connect(host, server.is_trusted, 4)
    return httpx2.AsyncClient(
        transport=_Measured(guarded, answer_bytes(server), on_forgotten),
        headers=server.headers,
        # A tool may think for long before it answers; whoever asks has a clock of its own.
        timeout=httpx2.Timeout(30.0, read=None),
        follow_redirects=False,
        trust_env=False,
    )


def answer_bytes(server: McpServer) -> int:
    """Longest message of a server: its answer, spelled as JSON, and what is around it."""
    return max(_MESSAGE_BYTES, 4 * server.max_output_bytes)
