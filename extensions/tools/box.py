"""Calls of tools: checked, limited in time and size, never repeated where that could do harm."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

import httpx2

from extensions.errors import ArgumentsInvalid
from extensions.programs.arguments import checked_arguments
from extensions.tools.catalog import REPEATABLE, HttpReply, ToolCaller, ToolResult
from extensions.tools.egress import EgressPolicy, GuardedTransport, Resolver, resolve
from extensions.tools.errors import (
    ToolArgumentsInvalid,
    ToolError,
    ToolFailed,
    ToolOutcomeUnknown,
    ToolTimeout,
)
from extensions.tools.fetching import fetch
from extensions.tools.http import HttpTools
from extensions.tools.redaction import Redaction
from extensions.tools.sending import McpForgotten, McpLost, Sent
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from extensions.tracing import SpanKind, span

if TYPE_CHECKING:
    from extensions.tools.mcp import McpTools

_LOST = (httpx2.TransportError, McpLost)


class ScriptRunner(Protocol):
    """Runs tools that are programs."""

    async def run(self, spec: ToolSpec, arguments: Mapping[str, Any], caller: ToolCaller) -> ToolResult:
        """Runs one to its end; cancelling ends it.

        Raises:
            ToolFailed: It raised, or cannot run.
        """
        ...


class ToolBox:
    """Everything that one process needs to call tools. Costs nothing before the first call.

    Args:
        egress: Which addresses may be reached.
        scripts: Runs tools that are programs; without it there are none.
        resolver: Looks names up.
    """

    def __init__(
        self,
        *,
        egress: EgressPolicy | None = None,
        scripts: ScriptRunner | None = None,
        resolver: Resolver = resolve,
    ) -> None:
        self._egress = egress or EgressPolicy()
        self._scripts = scripts
        self._resolver = resolver
        self._ssl: SSLContext | None = None
        self._http = HttpTools(self._connect)
        self._mcp: McpTools | None = None
        self._slots: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    async def call(
        self, spec: ToolSpec, arguments: Mapping[str, Any], *, operation_id: str, caller: ToolCaller
    ) -> ToolResult:
        """Calls a tool and waits for its answer. Cancelling gives the answer up; the tool may have done its work.

        Args:
            spec: Which.
            arguments: For it; defaults of its schema are filled in.
            operation_id: The same for the same piece of work, for the tool to know a repetition by.
            caller: For whom.

        Raises:
            ToolArgumentsInvalid: The arguments do not fit its schema.
            EgressDenied: It is where the server must not go.
            ToolTimeout: No answer in time; a repetition does no harm.
            ToolOutcomeUnknown: It was asked, and no answer came.
            ToolFailed: It could not be asked, or what came is no answer.
        """
        checked = check_arguments(spec, arguments)
        started_at = time.monotonic()
        redaction = Redaction.of(spec)
        sent = Sent()
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": spec.name}
        try:
            with span(f"execute_tool {spec.name}", attributes, SpanKind.CLIENT):
                result = await self._answer(spec, checked, operation_id, caller, sent)
        except ToolError as error:
            raise redaction.of_error(error) from None
        return replace(redaction.of_result(result), ms=round((time.monotonic() - started_at) * 1000, 1))

    async def _answer(
        self, spec: ToolSpec, checked: dict[str, Any], operation_id: str, caller: ToolCaller, sent: Sent
    ) -> ToolResult:
        async with (
            self._answering(spec.name, spec.effect in REPEATABLE, spec.timeout_s, sent),
            self._slot(spec, caller),
        ):
            await self._prepare()
            return await self._repeated(spec, checked, operation_id, caller, sent)

    async def list_tools(self, server: McpServer, *, caller: ToolCaller) -> list[ToolSpec]:
        """The tools of an MCP server, ready to be called; remembered for a while.

        Raises:
            EgressDenied: It is where the server must not go.
            ToolTimeout: No answer in time.
            ToolFailed: It cannot be asked.
        """
        try:
            async with self._answering(server.label, True, server.timeout_s, Sent()):
                await self._prepare()
                return await (await self._mcp_tools()).tools(server, caller.account)
        except ToolError as error:
            raise Redaction.of(server).of_error(error) from None

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
        """Sends a program's own request to a host that the operator allows; see `ToolCatalog.fetch`.

        Raises:
            ToolInvalid: The request cannot be sent as it is.
            ToolError: See `ToolCatalog.fetch`.
        """
        sent = Sent()
        is_repeatable = method in ("GET", "HEAD")
        async with self._answering(f"{method} {url[:200]}", is_repeatable, timeout_s, sent):
            await self._prepare()
            return await fetch(
                self._egress, self._connect, sent, method, url, headers=headers, body=body, max_bytes=max_bytes
            )

    async def aclose(self) -> None:
        """Closes all connections and ends all servers that it started. Idempotent."""
        await self._http.aclose()
        if self._mcp is not None:
            await self._mcp.aclose()

    async def _prepare(self) -> None:
        """Reads the certificates that servers are verified by, beside other work: it takes tenths of a second."""
        if self._ssl is None:
            self._ssl = await asyncio.to_thread(httpx2.create_ssl_context)

    def _connect(self, host: str, is_trusted: bool, keeps: int) -> GuardedTransport:
        assert self._ssl is not None
        return GuardedTransport(
            self._egress, host, is_trusted=is_trusted, ssl=self._ssl, keeps=keeps, resolver=self._resolver
        )

    async def _mcp_tools(self) -> McpTools:
        """What speaks MCP: loaded by the first who needs it, for the SDK takes a second and tens of megabytes."""
        if self._mcp is None:
            module = await asyncio.to_thread(import_module, "extensions.tools.mcp")
            if self._mcp is None:
                self._mcp = module.McpTools(self._connect)
        return self._mcp

    async def _repeated(
        self, spec: ToolSpec, arguments: dict[str, Any], operation_id: str, caller: ToolCaller, sent: Sent
    ) -> ToolResult:
        """Calls, and once more if the connection broke and that does no harm."""
        try:
            return await self._called(spec, arguments, operation_id, caller, sent)
        except _LOST as error:
            if spec.effect not in REPEATABLE and not isinstance(error, McpForgotten):
                raise
            return await self._called(spec, arguments, operation_id, caller, sent)

    async def _called(
        self, spec: ToolSpec, arguments: dict[str, Any], operation_id: str, caller: ToolCaller, sent: Sent
    ) -> ToolResult:
        if spec.http is not None:
            return await self._http.call(spec, spec.http, arguments, operation_id=operation_id, sent=sent)
        if spec.mcp is not None:
            mcp = await self._mcp_tools()
            return await mcp.call(
                spec, spec.mcp, arguments, operation_id=operation_id, account=caller.account, sent=sent
            )
        if self._scripts is None:
            raise ToolFailed("this server runs no programs as tools")
        sent.is_sent = True
        return await self._scripts.run(spec, arguments, caller)

    @asynccontextmanager
    async def _answering(self, name: str, is_repeatable: bool, timeout_s: float, sent: Sent) -> AsyncIterator[None]:
        """Says what it means that no answer came."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            if sent.is_sent and not is_repeatable:
                raise ToolOutcomeUnknown(
                    f"{name} was asked and did not answer within {timeout_s:g} s; it may have done its work"
                ) from None
            raise ToolTimeout(f"{name} did not answer within {timeout_s:g} s") from None
        except _LOST as error:
            reason = str(error) or type(error).__name__
            if sent.is_sent and not is_repeatable:
                raise ToolOutcomeUnknown(
                    f"{name} was asked and the connection broke ({reason}); it may have done its work"
                ) from None
            raise ToolFailed(f"{name} cannot be reached: {reason}") from None

    @asynccontextmanager
    async def _slot(self, spec: ToolSpec, caller: ToolCaller) -> AsyncIterator[None]:
        key = ("" if spec.is_trusted else caller.account, spec.name)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = asyncio.Semaphore(spec.max_parallel)
        async with slot:
            yield


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with the defaults of the tool's schema filled in.

    Raises:
        ToolArgumentsInvalid: They do not fit; `param` is the path of the first that does not.
    """
    try:
        return checked_arguments(spec.parameters, arguments)
    except ArgumentsInvalid as error:
        param = error.param.replace("args", "arguments", 1)
        message = str(error).replace("args", "arguments", 1)
        raise ToolArgumentsInvalid(f"{spec.name}: {message}", param) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolArgumentsInvalid(f"{spec.name}: the arguments are no JSON: {error}", "arguments") from None
