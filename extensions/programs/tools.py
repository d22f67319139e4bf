"""What `lm` can do with tools of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from extensions.programs.generating import Completion
from extensions.programs.jsons import checked_name
from extensions.programs.tool_calls import ScriptToolCall, answered, call_tool, catalog_of, read_call, value_of
from extensions.programs.tool_loop import ToolLoop

if TYPE_CHECKING:
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.scope import RunScope
    from extensions.tools.catalog import ToolInfo


class ScriptMcp:
    """A server that speaks MCP; see `Mcp` in the stubs.

    Attributes:
        server: Its label.
    """

    def __init__(self, scope: RunScope, server: str) -> None:
        self.server = server
        self._scope = scope

    async def tools(self) -> list[dict[str, Any]]:
        """Its tools."""
        return [_shown(one) for one in await catalog_of(self._scope).mcp_tools(self.server)]

    async def call(self, tool: str, args: Mapping[str, Any] | None = None, *, key: str | None = None) -> Any:
        """Calls one of them."""
        name, arguments, own_key = read_call(tool, args, key)
        call = catalog_of(self._scope).mcp_call(self.server, name, arguments, own_key)
        label = f"{self.server}/{name}"
        return value_of(label, await answered(self._scope, label, call))


class ToolCalls:
    """What `lm` can do with tools."""

    _scope: RunScope

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        """Calls a tool and waits for its answer."""
        tool, given, _ = read_call(name, arguments, None)
        return value_of(tool, await call_tool(self._scope, tool, given, None))

    async def start_tool(
        self, name: str, args: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> ScriptToolCall:
        """Calls a tool beside the script."""
        tool, given, own_key = read_call(name, args, key)
        info = await catalog_of(self._scope).find(tool)
        return ScriptToolCall(self._scope, info.name, given, own_key, info.effect)

    async def tools(self) -> list[dict[str, Any]]:
        """The tools that there are."""
        return [_shown(one) for one in await catalog_of(self._scope).names()]

    async def tool_loop(
        self,
        ctx: ScriptContext,
        tools: Sequence[str] | None = None,
        *,
        max_rounds: int = 8,
        emit: bool = True,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Completion:
        """Lets the model call tools until it stops asking."""
        fields = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed, "stop": stop}
        loop = await ToolLoop.begin(self._scope, ctx, tools, max_rounds=max_rounds, emit=emit, fields=fields)
        return await loop.run()

    def mcp(self, server: str) -> ScriptMcp:
        """A server that speaks MCP."""
        catalog_of(self._scope)
        return ScriptMcp(self._scope, checked_name(server, "server"))


def _shown(info: ToolInfo) -> dict[str, Any]:
    return {**info.as_function()["function"], "effect": info.effect}
