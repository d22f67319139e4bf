"""The tools of one program's run, for whoever pays for it: what `World.tools` is."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from extensions.programs.guard import Guard
from extensions.tools.catalog import REPEATABLE, HttpReply, ToolCaller, ToolInfo, ToolResult
from extensions.tools.errors import ToolDenied, ToolFailed, ToolNotFound, ToolOutcomeUnknown
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from gateway.errors import StoreUnavailable
from gateway.tools.entries import Entry
from gateway.tools.offers import SEPARATOR
from gateway.tools.registry import ToolRegistry
from gateway.tools.resolving import name_of
from gateway.tools.watched import WatchedBox

log = logging.getLogger(__name__)


class CallerCatalog:
    """Implements `extensions.tools.catalog.ToolCatalog`.

    A tool of a server is found by `server/tool` or, as models must spell it, `server__tool`.

    Args:
        registry: What there is.
        box: Calls it.
        caller: For whom.
    """

    def __init__(self, registry: ToolRegistry, box: WatchedBox, caller: ToolCaller) -> None:
        self._registry = registry
        self._box = box
        self._caller = caller

    def within(self, guard: Guard) -> CallerCatalog:
        """See `ToolCatalog.within`."""
        return CallerCatalog(self._registry, self._box, replace(self._caller, guard=guard))

    async def names(self) -> list[ToolInfo]:
        """See `ToolCatalog.names`: tools that belong to no server."""
        entries = await self._all()
        return [one.target.info() for one in entries if isinstance(one.target, ToolSpec) and not _asks(one)]

    async def find(self, name: str) -> ToolInfo:
        """See `ToolCatalog.find`."""
        spec = await self._spec(name)
        return replace(spec.info(), name=name.replace("/", SEPARATOR, 1))

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        """See `ToolCatalog.call`."""
        return await self._call(await self._spec(name), arguments, key)

    async def mcp_tools(self, server: str) -> list[ToolInfo]:
        """See `ToolCatalog.mcp_tools`."""
        entry = await self._server(server)
        return [spec.info() for spec in await self._listed(entry) if not _asks(entry, spec)]

    async def mcp_call(
        self, server: str, tool: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> ToolResult:
        """See `ToolCatalog.mcp_call`."""
        return await self._call(await self._of_server(server, tool), arguments, key)

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
        """See `ToolCatalog.fetch`."""
        return await self._box.fetch(method, url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes)

    async def _call(self, spec: ToolSpec, arguments: Mapping[str, Any], key: str | None) -> ToolResult:
        if not self._caller.may_call:
            raise ToolDenied("the API key lacks the scope 'tools'")
        work = uuid.uuid4().hex if key is None else _digest(self._caller.run_id, name_of(spec), key)
        if key is None or spec.effect in REPEATABLE or self._registry.store is None:
            return await self._box.call(spec, arguments, operation_id=work, caller=self._caller)
        return await self._once(spec, arguments, work)

    async def _once(self, spec: ToolSpec, arguments: Mapping[str, Any], work: str) -> ToolResult:
        """Does a piece of work that must not be done twice, or tells what came of it when it was done."""
        store, account = self._registry.store, self._caller.account
        assert store is not None
        with _as_tool_error():
            if not await store.claim(account, work):
                outcome = await store.outcome(account, work)
                if outcome is None:
                    raise ToolOutcomeUnknown(f"{spec.name} was called with this key before, and no answer is known")
                return ToolResult(**outcome)
        result = await self._box.call(spec, arguments, operation_id=work, caller=self._caller)
        outcome = {name: getattr(result, name) for name in ("text", "json", "has_json", "is_error", "is_cut", "ms")}
        try:
            await asyncio.shield(store.settle(account, work, outcome))
        except StoreUnavailable as error:
            log.warning("the outcome of a call of %s was not written down: %s", spec.name, error)
        return result

    async def _spec(self, name: str) -> ToolSpec:
        """A tool by any of its names.

        Raises:
            ToolNotFound: There is none.
            ToolDenied: A person would have to be asked.
        """
        entry = await self._entry(name)
        if entry is not None and isinstance(entry.target, ToolSpec):
            return _allowed(entry, entry.target)
        for separator in ("/", SEPARATOR):
            server, found, tool = name.partition(separator)
            if found and (entry := await self._entry(server)) is not None and isinstance(entry.target, McpServer):
                return await self._of_server(server, tool)
        raise ToolNotFound(f"there is no tool {name[:200]!r} here", name)

    async def _of_server(self, label: str, tool: str) -> ToolSpec:
        entry = await self._server(label)
        for spec in await self._listed(entry):
            if tool in (name_of(spec), spec.name):
                return _allowed(entry, spec)
        raise ToolNotFound(f"the server {label[:64]!r} has no tool {tool[:200]!r}", tool)

    async def _server(self, label: str) -> Entry:
        entry = await self._entry(label)
        if entry is None or not isinstance(entry.target, McpServer):
            raise ToolNotFound(f"there is no server {label[:200]!r} here", label)
        return entry

    async def _listed(self, entry: Entry) -> list[ToolSpec]:
        assert isinstance(entry.target, McpServer)
        return await self._box.list_tools(entry.target, caller=self._caller)

    async def _entry(self, name: str) -> Entry | None:
        with _as_tool_error():
            return await self._registry.find(name, self._caller.account)

    async def _all(self) -> list[Entry]:
        with _as_tool_error():
            return await self._registry.all(self._caller.account)


def _allowed(entry: Entry, spec: ToolSpec) -> ToolSpec:
    if _asks(entry, spec):
        raise ToolDenied(f"calls of {name_of(spec)} wait for a person's yes, which a program cannot give")
    return spec


def _asks(entry: Entry, spec: ToolSpec | None = None) -> bool:
    """Whether whoever registered a tool demands that a person is asked."""
    name = entry.name if spec is None else name_of(spec)
    effect = entry.target.effect if spec is None else spec.effect
    return entry.approval.of(name, effect) == "always"


@contextmanager
def _as_tool_error() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise ToolFailed(f"store_unavailable: {error.message}") from None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
