"""Tools of MCP servers: connections that are kept, opened again when lost, and closed when nobody uses them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from mcp_types import CallToolResult, RequestParamsMeta, TextContent, Tool

from extensions.programs.arguments import schema_error
from extensions.tools.catalog import ToolResult
from extensions.tools.egress import GuardedTransport
from extensions.tools.errors import ToolFailed
from extensions.tools.mcp_connection import McpConnection
from extensions.tools.sending import Sent
from extensions.tools.servers import McpServer
from extensions.tools.spec import McpTarget, ToolSpec
from extensions.tracing import kept_span

OPERATION_META = "wye/operation_id"
"""Key in a call's `_meta` with the id of one piece of work, so that a server can tell a repetition."""

MAX_CONNECTIONS = 256
"""Connections of one process."""

IDLE_S = 600.0
"""A connection that nobody used for that long is closed."""

_MAX_DESCRIPTION = 4096
_Key = tuple[str, bytes]


class McpTools:
    """All connections of one process. Every account has its own, even to the same server: sessions have state.

    Args:
        connect: Makes a transport for a host; see `McpConnection`.
    """

    def __init__(self, connect: Callable[[str, bool, int], GuardedTransport]) -> None:
        self._connect = connect
        self._open: dict[_Key, McpConnection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def tools(self, server: McpServer, account: str) -> list[ToolSpec]:
        """The server's tools that may be used; those that describe themselves wrongly are left out.

        Raises:
            ToolError: It cannot be asked.
            McpLost: The connection broke.
        """
        listed = await self._connection(server, account).tools()
        return [
            spec_of(server, tool)
            for tool in listed
            if _is_allowed(server, tool.name) and schema_error(tool.input_schema) is None
        ]

    async def call(
        self,
        spec: ToolSpec,
        target: McpTarget,
        arguments: Mapping[str, Any],
        *,
        operation_id: str,
        account: str,
        sent: Sent,
    ) -> ToolResult:
        """Calls once.

        Raises:
            ToolError: There is no answer, or none that could be used.
            McpLost: The connection broke; the tool may have done its work.
        """
        server, tool = target.server, target.tool
        if not _is_allowed(server, tool):
            raise ToolFailed(f"{tool!r} is not among the tools of {server.label!r} that may be used")

        # What asks runs in the connection's own task: below the span of this call only if it is told.
        below_this_call = kept_span()

        async def ask(client: Any) -> CallToolResult:
            sent.is_sent = True
            meta = cast("RequestParamsMeta", {OPERATION_META: operation_id})
            with below_this_call():  # the SDK has the server know of it, in `_meta`
                answer: CallToolResult = await client.call_tool(tool, dict(arguments), meta=meta)
            return answer

        answer = await self._connection(server, account).ask(ask)
        return to_result(answer, spec.max_output_bytes)

    async def aclose(self) -> None:
        """Closes all connections. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for key in list(self._open):
            self._close(key)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _connection(self, server: McpServer, account: str) -> McpConnection:
        key = (account, msgspec.json.encode(server))
        found = self._open.get(key)
        if found is not None and found.is_lost:
            self._close(key)
            found = None
        if found is None:
            self._make_room()
            found = self._open[key] = McpConnection(server, self._connect)
            self._watch()
        return found

    def _make_room(self) -> None:
        if len(self._open) < MAX_CONNECTIONS:
            return
        idle = [key for key, one in self._open.items() if not one.num_busy]
        if not idle:
            raise ToolFailed(f"{MAX_CONNECTIONS} MCP connections are in use; try again later")
        self._close(min(idle, key=lambda key: self._open[key].used_at))

    def _close(self, key: _Key) -> None:
        task = asyncio.ensure_future(self._open.pop(key).aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _watch(self) -> None:
        if self._timer is None and self._open:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S / 4, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        now = time.monotonic()
        for key, one in list(self._open.items()):
            if not one.num_busy and now - one.used_at > IDLE_S:
                self._close(key)
        self._watch()


def spec_of(server: McpServer, tool: Tool) -> ToolSpec:
    """A server's tool as a tool of ours: what it does to the world is what the operator says, not the server."""
    return ToolSpec(
        name=tool.name,
        description=(tool.description or tool.title or "")[:_MAX_DESCRIPTION],
        parameters=tool.input_schema,
        kind="mcp",
        mcp=McpTarget(server=server, tool=tool.name),
        effect=server.effects.get(tool.name, server.effect),
        timeout_s=server.timeout_s,
        max_output_bytes=server.max_output_bytes,
        is_trusted=server.is_trusted,
    )


def to_result(answer: CallToolResult, max_bytes: int) -> ToolResult:
    """A server's answer as a tool's result; what is no text is named, not shown."""
    structured = answer.structured_content
    texts = [one.text if isinstance(one, TextContent) else f"[{one.type}]" for one in answer.content]
    text = "\n".join(texts)
    if not text and structured is not None:
        text = json.dumps(structured, ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    if len(data) > max_bytes or (structured is not None and len(msgspec.json.encode(structured)) > max_bytes):
        cut = data[:max_bytes].decode("utf-8", "ignore")
        return ToolResult(text=cut, is_error=answer.is_error, is_cut=True)
    has_json = structured is not None and not answer.is_error
    return ToolResult(text=text, json=structured if has_json else None, has_json=has_json, is_error=answer.is_error)


def _is_allowed(server: McpServer, tool: str) -> bool:
    return server.allowed_tools is None or tool in server.allowed_tools
