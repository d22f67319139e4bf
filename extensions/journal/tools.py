"""The tools of a run that keeps a journal: what was called and answered is not called again.

What may be called again is a wait like others: a run that is handed over gives it up, and calls again elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from extensions.journal.effects import effect
from extensions.journal.journal import current
from extensions.tools.catalog import REPEATABLE, HttpReply, ToolCatalog, ToolInfo, ToolResult

if TYPE_CHECKING:
    from extensions.programs.guard import Guard

_SAFE_METHODS = frozenset({"GET", "HEAD"})


class JournaledTools:
    """Implements `extensions.tools.catalog.ToolCatalog` around another.

    Args:
        tools: The other.
    """

    def __init__(self, tools: ToolCatalog) -> None:
        self._tools = tools

    def within(self, guard: Guard) -> JournaledTools:
        """See `ToolCatalog.within`."""
        return JournaledTools(self._tools.within(guard))

    async def names(self) -> list[ToolInfo]:
        """See `ToolCatalog.names`."""
        return await effect("tools", None, self._tools.names, waits=True, pack=_pack_all, unpack=_unpack_all)

    async def find(self, name: str) -> ToolInfo:
        """See `ToolCatalog.find`."""
        return await effect("find", name, lambda: self._tools.find(name), waits=True, pack=asdict, unpack=_info)

    async def mcp_tools(self, server: str) -> list[ToolInfo]:
        """See `ToolCatalog.mcp_tools`."""
        return await effect(
            "tools", server, lambda: self._tools.mcp_tools(server), waits=True, pack=_pack_all, unpack=_unpack_all
        )

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        """See `ToolCatalog.call`."""
        info = await self.find(name)
        work, is_once = _same_work(info, key), info.effect not in REPEATABLE
        return await effect(
            "tool",
            [name, arguments, key],
            lambda: self._tools.call(name, arguments, work),
            is_once=is_once,
            waits=not is_once,
            pack=asdict,
            unpack=_result,
        )

    async def mcp_call(
        self, server: str, tool: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> ToolResult:
        """See `ToolCatalog.mcp_call`."""
        listed = {one.name: one for one in await self.mcp_tools(server)}
        info = listed.get(tool)
        work = key if info is None else _same_work(info, key)
        is_once = info is None or info.effect not in REPEATABLE
        return await effect(
            "tool",
            [server, tool, arguments, key],
            lambda: self._tools.mcp_call(server, tool, arguments, work),
            is_once=is_once,
            waits=not is_once,
            pack=asdict,
            unpack=_result,
        )

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
        return await effect(
            "request",
            [method, url, dict(headers), body],
            lambda: self._tools.fetch(
                method, url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes
            ),
            is_once=method not in _SAFE_METHODS,
            waits=method in _SAFE_METHODS,
            pack=asdict,
            unpack=_reply,
        )


def _same_work(info: ToolInfo, key: str | None) -> str | None:
    """What tells a tool that bears it that it is called for the same piece of work again."""
    call = current()
    if key is not None or call is None or info.effect not in REPEATABLE:
        return key
    return f"wye-{call.key('work')}"


def _pack_all(infos: list[ToolInfo]) -> list[dict[str, Any]]:
    return [asdict(one) for one in infos]


def _unpack_all(data: list[dict[str, Any]]) -> list[ToolInfo]:
    return [_info(one) for one in data]


def _info(data: dict[str, Any]) -> ToolInfo:
    return ToolInfo(**data)


def _result(data: dict[str, Any]) -> ToolResult:
    return ToolResult(**data)


def _reply(data: dict[str, Any]) -> HttpReply:
    return HttpReply(**data)
