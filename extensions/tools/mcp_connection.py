"""One connection to an MCP server, opened and closed in a task of its own: the SDK demands both of the same task."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, Implementation, Tool, ToolListChangedNotification

from extensions.tools.egress import GuardedTransport
from extensions.tools.errors import EgressDenied, ToolError, ToolFailed
from extensions.tools.mcp_http import answer_bytes, http_client
from extensions.tools.sending import McpForgotten, McpLost
from extensions.tools.servers import McpServer

MAX_TOOLS = 1000
"""Tools of one server; further ones are not there."""

_MAX_PAGES = 100
_CLIENT = Implementation(name="wye", version="1")

R = TypeVar("R")


class McpConnection:
    """A session with one server. Made in an event loop; opens at once.

    Args:
        server: Which.
        connect: Makes a transport for a host; the flag says if an operator named it, the number how many connections
            are kept.

    Attributes:
        used_at: When something was last asked, on the monotonic clock.
        num_busy: Questions that wait for their answer.
    """

    def __init__(self, server: McpServer, connect: Callable[[str, bool, int], GuardedTransport]) -> None:
        self.used_at = time.monotonic()
        self.num_busy = 0
        self._server = server
        self._connect = connect
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._tools: list[Tool] | None = None
        self._listed_at = 0.0
        self._is_forgotten = False
        self._task = asyncio.create_task(self._serve())

    @property
    def is_lost(self) -> bool:
        """Whether it is over."""
        return self._task.done() or self._closing.is_set()

    async def ask(self, question: Callable[[Client], Coroutine[Any, Any, R]]) -> R:
        """Asks the server something; cancelling tells the server.

        Raises:
            EgressDenied: Its address must not be reached.
            ToolFailed: It cannot be reached, or it answers with an error.
            McpLost: The connection broke; what the server did is not known.
        """
        self.num_busy += 1
        try:
            client = await asyncio.shield(self._ready)
            return await self._raced(asyncio.create_task(question(client)))
        finally:
            self.num_busy -= 1
            self.used_at = time.monotonic()

    async def tools(self) -> list[Tool]:
        """Its tools, remembered for a while.

        Raises:
            ToolError: As `ask`.
            McpLost: As `ask`.
        """
        known = self._tools
        if known is None or time.monotonic() - self._listed_at > self._server.list_ttl_s:
            started_at = time.monotonic()
            self._tools = known = await self.ask(_listed)
            self._listed_at = started_at
        return known

    async def aclose(self) -> None:
        """Ends the session. Idempotent."""
        self._closing.set()
        _, waiting = await asyncio.wait({self._task}, timeout=5.0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _raced(self, asked: asyncio.Task[R]) -> R:
        try:
            await asyncio.wait({asked, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise McpLost("the connection broke")
            return asked.result()
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                self._closing.set()
                raise McpLost(error.message) from None
            if self._is_forgotten:
                self._closing.set()
                raise McpForgotten(error.message) from None
            raise ToolFailed(f"the server answered with an error: {error.message}") from None
        except (RuntimeError, ValueError) as error:
            # What the SDK makes of answers that are no answers.
            raise ToolFailed(f"the server's answer cannot be used: {error}") from None
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    async def _serve(self) -> None:
        try:
            async with self._opened() as client:
                self._ready.set_result(client)
                await self._closing.wait()
        except asyncio.CancelledError:
            self._fail(ToolFailed("the connection was closed"))
            raise
        except Exception as error:
            self._fail(_reason(error, self._server))

    def _fail(self, error: ToolError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)
            # Whoever waited has gone, perhaps.
            self._ready.exception()

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
        async def on_message(message: Any) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._tools = None

        def on_forgotten() -> None:
            self._is_forgotten = True

        server = self._server
        async with contextlib.AsyncExitStack() as stack:
            if server.command:
                command, *args = server.command
                parameters = StdioServerParameters(command=command, args=args, env=dict(server.env))
                transport = stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr)
            else:
                client = await stack.enter_async_context(http_client(server, self._connect, on_forgotten))
                transport = streamable_http_client(
                    server.url, http_client=client, max_sse_event_size=answer_bytes(server)
                )
            yield await stack.enter_async_context(
                Client(transport, cache=None, message_handler=on_message, client_info=_CLIENT)
            )


async def _listed(client: Client) -> list[Tool]:
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if cursor is None or len(found) >= MAX_TOOLS:
            break
    return found[:MAX_TOOLS]


def _reason(error: BaseException, server: McpServer) -> ToolError:
    """Why a connection could not be opened."""
    for one in _leaves(error):
        if isinstance(one, EgressDenied):
            return one
    first = _leaves(error)[0]
    if server.command and isinstance(first, OSError):
        # By its name: the error of the operating system may not have it.
        command, reason = server.command[0], first.strerror or str(first)
        return ToolFailed(f"the MCP server {server.label!r} cannot be started: {command!r}: {reason}")
    return ToolFailed(f"the MCP server {server.label!r} cannot be reached: {first or type(first).__name__}")


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
