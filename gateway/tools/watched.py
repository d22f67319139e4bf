"""Calls of tools, written down and counted, whoever makes them: chats, responses, programs, tests."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from extensions.tools.box import ToolBox
from extensions.tools.catalog import HttpReply, ToolCaller, ToolResult
from extensions.tools.errors import ToolError
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec

log = logging.getLogger(__name__)

COMPLETED = "completed"
"""The tool has answered."""

TOOL_ERROR = "tool_error"
"""The tool has answered that it did not work."""

ABANDONED = "abandoned"
"""Nobody waited for the answer any more."""


class ToolMetrics(Protocol):
    """Told of each call."""

    def observe_tool(self, kind: str, outcome: str, seconds: float) -> None:
        """A call has ended."""
        ...


class WatchedBox:
    """A `ToolBox` whose calls are written down: who, what, a digest of the arguments, what came of it.

    Args:
        box: Makes them.
        metrics: Told of each.
    """

    def __init__(self, box: ToolBox, metrics: ToolMetrics) -> None:
        self._box = box
        self._metrics = metrics

    async def call(
        self, spec: ToolSpec, arguments: Mapping[str, Any], *, operation_id: str, caller: ToolCaller
    ) -> ToolResult:
        """See `ToolBox.call`."""
        started_s, outcome = time.perf_counter(), ABANDONED
        try:
            result = await self._box.call(spec, arguments, operation_id=operation_id, caller=caller)
            outcome = TOOL_ERROR if result.is_error else COMPLETED
        except ToolError as error:
            outcome = error.code
            raise
        finally:
            took_s = time.perf_counter() - started_s
            self._metrics.observe_tool(spec.kind, outcome, took_s)
            who = (caller.account or "-", caller.run_id or "-")
            what = (_name(spec), *who, digest(arguments), outcome, took_s * 1000)
            log.info("tool %s for %s in %s, arguments %s: %s after %.0f ms", *what)
        return result

    async def list_tools(self, server: McpServer, *, caller: ToolCaller) -> list[ToolSpec]:
        """See `ToolBox.list_tools`."""
        return await self._box.list_tools(server, caller=caller)

    async def fetch(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
        max_bytes: int,
    ) -> HttpReply:
        """See `ToolBox.fetch`."""
        return await self._box.fetch(method, url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes)

    async def aclose(self) -> None:
        """See `ToolBox.aclose`."""
        await self._box.aclose()


def digest(arguments: Mapping[str, Any]) -> str:
    """What tells arguments apart and tells nothing of them."""
    text = json.dumps(arguments, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _name(spec: ToolSpec) -> str:
    return spec.name if spec.mcp is None else f"{spec.mcp.server.label}/{spec.mcp.tool}"
