"""Everything that one gateway process has for tools: which there are, what calls them, what requests are offered."""

from __future__ import annotations

import os
from pathlib import Path

from extensions.runtime import Runtime
from extensions.tools.box import ToolBox
from extensions.tools.catalog import ToolCaller
from extensions.tools.egress import EgressPolicy
from extensions.tools.scripts import ScriptTools
from gateway.settings import Settings
from gateway.state.tools import ToolStore
from gateway.tools.catalog import CallerCatalog
from gateway.tools.entries import Entry
from gateway.tools.file import load_tools
from gateway.tools.registry import ToolRegistry
from gateway.tools.resolving import ToolResolver
from gateway.tools.watched import ToolMetrics, WatchedBox


class ToolService:
    """Costs nothing before the first call.

    Args:
        registry: Which tools there are.
        box: Calls them.
        takes_addresses: Requests may bring servers that nobody registered.

    Attributes:
        registry: See above.
        box: See above.
        resolver: Finds what requests name.
    """

    def __init__(self, registry: ToolRegistry, box: WatchedBox, *, takes_addresses: bool = False) -> None:
        self.registry = registry
        self.box = box
        self.resolver = ToolResolver(registry, box, takes_addresses=takes_addresses)

    def catalog(self, caller: ToolCaller) -> CallerCatalog:
        """The tools of a program's run."""
        return CallerCatalog(self.registry, self.box, caller)

    async def aclose(self) -> None:
        """Closes connections, and ends servers that were started. Idempotent."""
        await self.box.aclose()
        await self.registry.aclose()


def build_tools(settings: Settings, runtime: Runtime, url: str, model: str, metrics: ToolMetrics) -> ToolService:
    """What calls tools in one gateway process.

    Args:
        settings: How to serve.
        runtime: Where tools run that are programs.
        url: Of the Redis that keeps tenants' tools; empty keeps none.
        model: Name that such programs see of the model.
        metrics: Told of each call.

    Raises:
        ToolsFileError: The operator's file cannot be used.
    """
    store = ToolStore(url, max_tools=settings.max_tools, max_bytes=settings.max_tools_bytes) if url else None
    egress = EgressPolicy.read(settings.tool_hosts, settings.tool_networks)
    box = WatchedBox(ToolBox(egress=egress, scripts=ScriptTools(runtime, model)), metrics)
    registry = ToolRegistry(operator_tools(settings), store)
    return ToolService(registry, box, takes_addresses=settings.adhoc_tool_servers)


def operator_tools(settings: Settings) -> dict[str, Entry]:
    """What the operator's file has, by name; nothing without one.

    Raises:
        ToolsFileError: It cannot be used.
    """
    # The one place beside the settings that reads the environment: for secrets that the file names.
    return load_tools(Path(settings.tools_file).expanduser(), os.environ) if settings.tools_file else {}
