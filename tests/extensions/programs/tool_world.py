"""A catalog over a real tool box, for programs in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from extensions.programs.guard import Guard
from extensions.programs.world import World
from extensions.tools.box import ToolBox
from extensions.tools.catalog import HttpReply, ToolCaller, ToolInfo, ToolResult
from extensions.tools.errors import ToolNotFound
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from tests.extensions.tools.service import Service

CALLER = ToolCaller(account="ada", run_id="run-1")


class BoxCatalog:
    """Implements `extensions.tools.catalog.ToolCatalog` over some tools and servers."""

    def __init__(
        self, box: ToolBox, specs: list[ToolSpec], servers: list[McpServer] | None = None, caller: ToolCaller = CALLER
    ) -> None:
        self._box = box
        self._caller = caller
        self._specs = {spec.name: spec for spec in specs}
        self._servers = {server.label: server for server in servers or []}

    def within(self, guard: Guard) -> BoxCatalog:
        bound = replace(self._caller, guard=guard)
        return BoxCatalog(self._box, list(self._specs.values()), list(self._servers.values()), bound)

    async def names(self) -> list[ToolInfo]:
        return [spec.info() for spec in self._specs.values()]

    async def find(self, name: str) -> ToolInfo:
        return self._spec(name).info()

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        return await self._box.call(self._spec(name), arguments, operation_id=key or "op", caller=self._caller)

    async def mcp_tools(self, server: str) -> list[ToolInfo]:
        return [spec.info() for spec in await self._listed(server)]

    async def mcp_call(
        self, server: str, tool: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> ToolResult:
        spec = next(one for one in await self._listed(server) if one.name == tool)
        return await self._box.call(spec, arguments, operation_id=key or "op", caller=self._caller)

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
        return await self._box.fetch(method, url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes)

    async def _listed(self, server: str) -> list[ToolSpec]:
        if server not in self._servers:
            raise ToolNotFound(f"there is no server {server!r}", server)
        return await self._box.list_tools(self._servers[server], caller=self._caller)

    def _spec(self, name: str) -> ToolSpec:
        if name not in self._specs:
            raise ToolNotFound(f"there is no tool {name!r} here", name)
        return self._specs[name]


def tool(service: Service, path: str, **more: Any) -> ToolSpec:
    """A tool of the service, named after its path."""
    name = path.strip("/").partition("/")[0]
    described = {"name": name, "kind": "http", "http": {"url": service.url + path}, "effect": "pure", **more}
    return ToolSpec.from_wire(described, environ={})


def world_of(box: ToolBox, specs: list[ToolSpec], servers: list[McpServer] | None = None) -> World:
    """A world with nothing but tools."""
    return World(tools=BoxCatalog(box, specs, servers))
