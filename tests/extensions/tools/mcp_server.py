"""A real MCP server, over HTTP or the standard streams: `python -m tests.extensions.tools.mcp_server`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError


class Server:
    """The server and what reached it.

    Attributes:
        mcp: It.
        calls: Tool, arguments and `_meta` of each call.
        called: Set when a slow call began.
        cancelled: Set when a slow call was cancelled.
    """

    def __init__(self) -> None:
        self.mcp = MCPServer("files")
        self.calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        mcp = self.mcp

        def note(name: str, ctx: Context[Any, Any], **arguments: Any) -> None:
            meta = ctx.request_context.meta
            self.calls.append((name, arguments, dict(meta or {})))

        @mcp.tool()
        async def add(a: int, b: int, ctx: Context[Any, Any]) -> int:
            """Adds two numbers."""
            note("add", ctx, a=a, b=b)
            return a + b

        @mcp.tool(structured_output=False)
        async def read(path: str, ctx: Context[Any, Any]) -> str:
            """Reads a file."""
            note("read", ctx, path=path)
            return f"contents of {path}"

        @mcp.tool()
        async def fail(ctx: Context[Any, Any]) -> str:
            """Does not work."""
            note("fail", ctx)
            raise ToolError("no such file")

        @mcp.tool(structured_output=False)
        async def long(ctx: Context[Any, Any]) -> str:
            """Says a lot."""
            note("long", ctx)
            return "é" * 10_000

        @mcp.tool(structured_output=False)
        async def slow(ctx: Context[Any, Any]) -> str:
            """Never answers."""
            note("slow", ctx)
            self.called.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "done"

        @mcp.tool(structured_output=False)
        async def die() -> str:
            """Ends the server."""
            os._exit(3)

        @mcp.tool(structured_output=False)
        async def environment() -> str:
            """Names of what the server's environment holds, and the value of one."""
            return " ".join(sorted(os.environ)) + " TOKEN=" + os.environ.get("TOKEN", "")


class Legacy:
    """Servers as most still are: they begin with a handshake, and hold sessions. May be restarted.

    Attributes:
        current: Who answers.
    """

    def __init__(self, *servers: Server) -> None:
        self._apps = [one.mcp.streamable_http_app() for one in servers]
        self.current = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        body, more = b"", scope["method"] == "POST"
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if b"server/discover" in body:
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> Any:
            return next(given, None) or await receive()

        await self._apps[self.current](scope, replay, send)

    async def _live(self, receive: Any, send: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for app in self._apps:
                await stack.enter_async_context(app.router.lifespan_context(app))
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    Server().mcp.run("stdio")
