"""From the tools that a request names to those that the model is offered."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from extensions.tools.catalog import ToolCaller
from extensions.tools.errors import ToolInvalid
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from extensions.tools.wire import check_headers
from gateway.errors import BadRequest
from gateway.schemas.tools_mcp import McpTool
from gateway.tools.approval import Approval, needs_approval
from gateway.tools.entries import OWN_LABEL, Entry
from gateway.tools.offers import Listing, Offers, ToolDoor, with_headers
from gateway.tools.registry import ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator


class ToolResolver:
    """Finds what requests name.

    Args:
        registry: What there is.
        door: Asks servers for their tools.
        takes_addresses: Requests may bring servers that nobody registered.
    """

    def __init__(self, registry: ToolRegistry, door: ToolDoor, *, takes_addresses: bool) -> None:
        self._registry = registry
        self._door = door
        self._takes_addresses = takes_addresses

    async def by_name(self, names: Iterable[str], taken: Collection[str], caller: ToolCaller) -> Offers:
        """The tools that a chat names: `tool`, `server` for all of a server's, or `server/tool`.

        Args:
            names: Each once; repetitions are left out.
            taken: Names of the client's own functions.
            caller: Who asks.

        Raises:
            BadRequest: There is no such tool, or one that waits for a person's yes, which a chat cannot give.
            StoreUnavailable: Redis did not answer.
            ToolError: A server cannot be asked for its tools.
        """
        offers = Offers(taken=taken)
        for number, name in enumerate(dict.fromkeys(names)):
            await self._add_named(offers, name, caller, f"server_tools[{number}]")
        return offers

    async def by_server(
        self, asked: Sequence[tuple[int, McpTool]], taken: Collection[str], caller: ToolCaller
    ) -> Offers:
        """The tools of the servers that a response names.

        Args:
            asked: With their places in the request's `tools`.
            taken: Names of the client's own functions.
            caller: Who asks.

        Raises:
            BadRequest: There is no such server, or something in how it is named cannot be.
            StoreUnavailable: Redis did not answer.
            ToolError: A server cannot be asked for its tools.
        """
        labels = [tool.server_label for _, tool in asked]
        for place, (number, tool) in enumerate(asked):
            if tool.server_label in labels[:place]:
                message = f"Two servers have the label '{tool.server_label}'."
                raise BadRequest(message, f"tools[{number}].server_label")
        found = await asyncio.gather(*(self._tools_of(number, tool, caller) for number, tool in asked))
        offers = Offers(taken=taken)
        for (number, tool), entries in zip(asked, found, strict=True):
            listed = [
                offers.add(
                    spec,
                    label=tool.server_label,
                    name=name,
                    needs_approval=needs_approval(name, spec.effect, registered, tool.approval()),
                    param=f"tools[{number}]",
                )
                for name, spec, registered in entries
                if tool.takes(name, is_pure=spec.effect == "pure")
            ]
            names = frozenset(name for name, _, _ in entries)
            offers.listings.append(Listing(label=tool.server_label, offers=tuple(listed), names=names))
        return offers

    async def _add_named(self, offers: Offers, name: str, caller: ToolCaller, param: str) -> None:
        own, slash, tool = name.partition("/")
        entry = await self._registry.find(own, caller.account)
        if entry is None:
            raise BadRequest(f"There is no tool '{name[:200]}' here.", param, "tool_not_found")
        target = entry.target
        if isinstance(target, ToolSpec):
            if slash:
                raise BadRequest(f"'{own}' is a tool and no server of tools.", param, "tool_not_found")
            _check_asks_nobody(entry, target.name, target, param)
            offers.add(target, label=None, name=target.name, param=param)
            return
        specs = {name_of(spec): spec for spec in await self._door.list_tools(target, caller=caller)}
        if slash and tool not in specs:
            raise BadRequest(f"The server '{own}' has no tool '{tool[:200]}'.", param, "tool_not_found")
        for named, spec in specs.items():
            if slash and named != tool:
                continue
            if slash:
                _check_asks_nobody(entry, named, spec, param)
            elif entry.approval.of(named, spec.effect) == "always":
                continue
            offers.add(spec, label=own, name=named, param=param)

    async def _tools_of(self, number: int, tool: McpTool, caller: ToolCaller) -> list[tuple[str, ToolSpec, Approval]]:
        """Name, description and registered rule of each tool of a server."""
        with _below(f"tools[{number}]"):
            tool.approval()
            headers = _headers(tool)
            if tool.server_label == OWN_LABEL:
                return await self._own_tools(tool, caller)
            server, registered = await self._server(tool, number, caller)
            if headers and server.command:
                raise ToolInvalid("this server is a program here; it takes no headers", "headers")
        specs = await self._door.list_tools(with_headers(server, headers), caller=caller)
        return [(name_of(spec), spec, registered) for spec in specs]

    async def _own_tools(self, tool: McpTool, caller: ToolCaller) -> list[tuple[str, ToolSpec, Approval]]:
        if tool.server_url or tool.authorization or tool.headers:
            raise ToolInvalid(f"'{OWN_LABEL}' has the server's own tools; it takes no address and no headers")
        entries = await self._registry.all(caller.account)
        return [(one.name, one.target, one.approval) for one in entries if isinstance(one.target, ToolSpec)]

    async def _server(self, tool: McpTool, number: int, caller: ToolCaller) -> tuple[McpServer, Approval]:
        label, param = tool.server_label, f"tools[{number}].server_label"
        entry = await self._registry.find(label, caller.account)
        if entry is None:
            if tool.server_url is None:
                raise BadRequest(f"There is no server '{label}' here.", param, "tool_not_found")
            if not self._takes_addresses:
                message = (
                    f"There is no server '{label}' here; register it at /v1/tools to use '{tool.server_url[:200]}'."
                )
                raise BadRequest(message, param, "tool_not_found")
            with _renamed("url", "server_url"):
                return McpServer.from_wire({"label": label, "url": tool.server_url}), Approval()
        if not isinstance(entry.target, McpServer):
            message = f"'{label}' is a tool and no server; ask for '{OWN_LABEL}' and name it under 'allowed_tools'."
            raise BadRequest(message, param, "tool_not_found")
        if tool.server_url is not None and tool.server_url.rstrip("/") != entry.target.url.rstrip("/"):
            message = f"The server '{label}' is registered with another address."
            raise BadRequest(message, f"tools[{number}].server_url")
        return entry.target, entry.approval


def name_of(spec: ToolSpec) -> str:
    """A tool's own name: at its server, if it has one there."""
    return spec.name if spec.mcp is None else spec.mcp.tool


def _headers(tool: McpTool) -> dict[str, str]:
    headers = dict(tool.headers)
    if tool.authorization is not None:
        if any(name.lower() == "authorization" for name in headers):
            raise ToolInvalid("'authorization' is among the headers too", "authorization")
        headers["Authorization"] = f"Bearer {tool.authorization}"
    check_headers(headers, "headers")
    return headers


def _check_asks_nobody(entry: Entry, name: str, spec: ToolSpec, param: str) -> None:
    if entry.approval.of(name, spec.effect) == "always":
        message = f"Calls of '{name}' wait for a person's yes, which a chat cannot give; /v1/responses can."
        raise BadRequest(message, param, "tool_denied")


@contextmanager
def _below(place: str) -> Iterator[None]:
    """What is raised inside about a field is said to be below `place`."""
    try:
        yield
    except ToolInvalid as error:
        param = f"{place}.{error.param}" if error.param else place
        raise BadRequest(f"Invalid '{param}': {error.message}.", param) from None


@contextmanager
def _renamed(ours: str, theirs: str) -> Iterator[None]:
    try:
        yield
    except ToolInvalid as error:
        param = theirs if error.param == ours else error.param
        raise ToolInvalid(error.message, param) from None
