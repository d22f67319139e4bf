"""What one request lets the model call on this server: tools by the names that the model sees."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from extensions.tools.catalog import ToolCaller, ToolResult
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from gateway.errors import BadRequest
from gateway.schemas.tools import FunctionDefinition, Tool

SEPARATOR = "__"
"""Between a server's label and a tool's name, where the name alone would be taken already."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME = 64


class ToolDoor(Protocol):
    """What calls tools; `extensions.tools.box.ToolBox`."""

    async def call(
        self, spec: ToolSpec, arguments: Mapping[str, Any], *, operation_id: str, caller: ToolCaller
    ) -> ToolResult:
        """Calls a tool and waits for its answer."""
        ...

    async def list_tools(self, server: McpServer, *, caller: ToolCaller) -> list[ToolSpec]:
        """The tools of a server, under their own names."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One tool that the model may call.

    Attributes:
        function: What the model calls it.
        label: Of its server, as the client knows it; None for a tool by itself in a chat.
        name: Its own name.
        spec: How it is called.
        needs_approval: A person is asked before each call.
    """

    function: str
    label: str | None
    name: str
    spec: ToolSpec
    needs_approval: bool = False

    def as_tool(self) -> Tool:
        """The tool as requests spell it."""
        spec = self.spec
        definition = FunctionDefinition.model_construct(
            name=self.function, description=spec.description or None, parameters=dict(spec.parameters), strict=None
        )
        return Tool.model_construct(type="function", function=definition)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """The tools of one server that a request names.

    Attributes:
        label: Of the server.
        offers: Its tools that the request allows, in its own order.
        names: Of all its tools.
    """

    label: str
    offers: tuple[Offer, ...]
    names: frozenset[str] = frozenset()

    def shown(self) -> list[dict[str, Any]]:
        """The tools as a client sees them."""
        return [
            {
                "name": offer.name,
                "description": offer.spec.description or None,
                "input_schema": dict(offer.spec.parameters),
                "annotations": {"read_only": offer.spec.effect == "pure"},
            }
            for offer in self.offers
        ]


@dataclass(slots=True)
class Offers:
    """All tools of one request that this server runs.

    Attributes:
        taken: Names that the client's own functions have.
        listings: Servers, in the order of the request.
    """

    taken: Collection[str] = ()
    listings: list[Listing] = field(default_factory=list)
    _by_function: dict[str, Offer] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._by_function or self.listings)

    def __iter__(self) -> Iterator[Offer]:
        return iter(self._by_function.values())

    def get(self, function: str) -> Offer | None:
        """The tool that the model means; None for a function of the client."""
        return self._by_function.get(function)

    def of(self, label: str, name: str | None = None) -> list[Offer]:
        """Tools by what the client calls them."""
        return [one for one in self if one.label == label and name in (None, one.name)]

    def has_none(self, label: str, name: str) -> bool:
        """Whether the request names a server that has no such tool, allowed or not."""
        return any(one.label == label and name not in one.names for one in self.listings)

    def tools(self) -> list[Tool]:
        """All of them as requests spell tools."""
        return [offer.as_tool() for offer in self]

    def add(
        self, spec: ToolSpec, *, label: str | None, name: str, needs_approval: bool = False, param: str = "tools"
    ) -> Offer:
        """Offers one more tool.

        Raises:
            BadRequest: The model could not tell it from another one.
        """
        function = self._function(label, name, param)
        offer = Offer(function=function, label=label, name=name, spec=spec, needs_approval=needs_approval)
        self._by_function[function] = offer
        return offer

    def _function(self, label: str | None, name: str, param: str) -> str:
        wanted = [function_name(name)]
        if label is not None:
            wanted.append(function_name(f"{label}{SEPARATOR}{name}"))
        for function in wanted:
            if function not in self._by_function and function not in self.taken:
                return function
        message = f"Two tools of this request have the name '{name[:64]}'; the model could not tell one from the other."
        raise BadRequest(message, param)


def function_name(name: str) -> str:
    """What models call a tool of any name."""
    return _NO_NAME.sub("_", name)[:_MAX_NAME]


def with_headers(server: McpServer, headers: Mapping[str, str]) -> McpServer:
    """A server that is sent more headers; those that it was registered with stay as they are."""
    if not headers:
        return server
    own = {name.lower() for name in server.headers}
    more = {name: value for name, value in headers.items() if name.lower() not in own}
    return msgspec.structs.replace(server, headers={**server.headers, **more})


def names_of(tools: Sequence[Tool]) -> set[str]:
    """Names of the client's own functions."""
    return {tool.function.name for tool in tools}
