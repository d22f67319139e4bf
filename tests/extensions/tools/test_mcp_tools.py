"""MCP tools against real servers, over HTTP and over the standard streams of a program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psutil
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from extensions.tools.box import ToolBox
from extensions.tools.catalog import ToolCaller, ToolResult
from extensions.tools.errors import EgressDenied, ToolArgumentsInvalid, ToolFailed, ToolOutcomeUnknown, ToolTimeout
from extensions.tools.servers import McpServer
from tests.extensions.tools.conftest import CALLER
from tests.extensions.tools.mcp_server import Legacy, Server
from tests.extensions.tools.service import served
from tests.processes import words_of


@pytest.fixture
def server() -> Server:
    """A server, not yet served."""
    return Server()


@asynccontextmanager
async def over_http(server: Server, *, is_legacy: bool = False, **more: Any) -> AsyncIterator[McpServer]:
    """Serves it, and yields its description."""
    async with served(Legacy(server) if is_legacy else server.mcp.streamable_http_app()) as url:
        yield McpServer.from_wire({"label": "files", "url": f"{url}/mcp", **more}, environ={"T": "s3cret-value"})


def as_program(**more: Any) -> McpServer:
    """The same as a program."""
    command = [sys.executable, "-m", "tests.extensions.tools.mcp_server"]
    return McpServer.from_wire({"label": "files", "command": command, **more}, environ={"T": "s3cret-value"})


async def call(
    box: ToolBox, server: McpServer, tool: str, arguments: dict[str, Any], caller: ToolCaller = CALLER
) -> ToolResult:
    """Lists, finds, calls."""
    specs = {spec.name: spec for spec in await box.list_tools(server, caller=caller)}
    return await box.call(specs[tool], arguments, operation_id="op_9", caller=caller)


async def test_tools_are_listed_with_the_operators_word_for_what_they_do(server: Server, box: ToolBox) -> None:
    more: dict[str, Any] = {"allowed_tools": ["add", "read"], "effects": {"read": "pure"}, "effect": "irreversible"}
    async with over_http(server, **more) as described:
        specs = await box.list_tools(described, caller=CALLER)
        await box.aclose()
    assert {spec.name: spec.effect for spec in specs} == {"add": "irreversible", "read": "pure"}
    add = specs[0]
    assert add.description == "Adds two numbers."
    assert add.info().as_function()["function"]["parameters"]["required"] == ["a", "b"]


async def test_a_call_carries_its_operation_and_returns_text_and_json(server: Server, box: ToolBox) -> None:
    async with over_http(server) as described:
        added = await call(box, described, "add", {"a": 2, "b": 3})
        read = await call(box, described, "read", {"path": "/a"})
        failed = await call(box, described, "fail", {})
        cut = await call(box, msgspec.structs.replace(described, max_output_bytes=1001), "long", {})
        await box.aclose()
    assert added.value == {"result": 5}
    assert (read.value, read.has_json, read.is_error) == ("contents of /a", False, False)
    assert failed.is_error
    assert "no such file" in failed.text
    assert cut.is_cut
    assert cut.text == "é" * 500
    name, arguments, meta = server.calls[0]
    assert (name, arguments, meta["wye/operation_id"]) == ("add", {"a": 2, "b": 3}, "op_9")


async def test_a_server_is_told_of_the_trace_that_each_call_belongs_to(server: Server, box: ToolBox) -> None:
    async with over_http(server) as described:
        for number in (1, 2):
            known = SpanContext(trace_id=number << 64, span_id=7, is_remote=False, trace_flags=TraceFlags(1))
            with use_span(NonRecordingSpan(known)):
                await call(box, described, "add", {"a": 2, "b": 3})
        await call(box, described, "add", {"a": 2, "b": 3})
        await box.aclose()
    told = [meta.get("traceparent") for _, _, meta in server.calls]
    assert [one and one.split("-")[1] for one in told] == [f"{1 << 64:032x}", f"{2 << 64:032x}", None]


async def test_arguments_are_checked_before_the_server_hears_of_them(server: Server, box: ToolBox) -> None:
    async with over_http(server) as described:
        with pytest.raises(ToolArgumentsInvalid):
            await call(box, described, "add", {"a": 2})
        await box.aclose()
    assert server.calls == []


async def test_a_tool_that_is_not_allowed_cannot_be_called_by_its_name(server: Server, box: ToolBox) -> None:
    async with over_http(server) as described:
        spec = next(one for one in await box.list_tools(described, caller=CALLER) if one.name == "add")
        assert spec.mcp is not None
        narrow = msgspec.structs.replace(spec.mcp, server=msgspec.structs.replace(described, allowed_tools=("read",)))
        narrowed = msgspec.structs.replace(spec, mcp=narrow)
        with pytest.raises(ToolFailed, match="may be used"):
            await box.call(narrowed, {"a": 1, "b": 1}, operation_id="op", caller=CALLER)
        await box.aclose()
    assert server.calls == []


@pytest.mark.parametrize("is_legacy", [False, True])
async def test_giving_a_call_up_tells_the_server(server: Server, box: ToolBox, is_legacy: bool) -> None:
    async with over_http(server, is_legacy=is_legacy) as described:
        task = asyncio.create_task(call(box, described, "slow", {}))
        await asyncio.wait_for(server.called.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.cancelled.wait(), 60)
        # The session goes on.
        assert (await call(box, described, "add", {"a": 1, "b": 1})).value == {"result": 2}
        await box.aclose()


@pytest.mark.parametrize(("effect", "error"), [("once", ToolOutcomeUnknown), ("pure", ToolTimeout)])
async def test_what_no_answer_means_depends_on_what_the_tool_does(
    server: Server, box: ToolBox, effect: str, error: type[Exception]
) -> None:
    async with over_http(server, effect=effect) as described:
        await box.list_tools(described, caller=CALLER)
        with pytest.raises(error):
            await call(box, msgspec.structs.replace(described, timeout_s=2.0), "slow", {})
        await box.aclose()
    assert len(server.calls) == 1


async def test_a_server_that_forgot_its_sessions_is_asked_in_a_new_one(box: ToolBox) -> None:
    first, second = Server(), Server()
    legacy = Legacy(first, second)
    async with served(legacy) as url:
        described = McpServer.from_wire({"label": "files", "url": f"{url}/mcp"}, environ={})
        assert (await call(box, described, "add", {"a": 1, "b": 1})).value == {"result": 2}
        legacy.current = 1
        assert (await call(box, described, "add", {"a": 2, "b": 2})).value == {"result": 4}
        await box.aclose()
    assert [len(first.calls), len(second.calls)] == [1, 1]


async def test_every_account_has_a_session_of_its_own(server: Server, box: ToolBox) -> None:
    described = as_program()
    for account in ("ada", "bob", "ada"):
        await call(box, described, "add", {"a": 1, "b": 1}, ToolCaller(account=account))
    assert len(_programs()) == 2
    await box.aclose()
    assert _programs() == []


async def test_a_program_sees_its_own_environment_and_nothing_of_the_servers(
    box: ToolBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WYE_API_KEYS", "nobody-knows")
    result = await call(box, as_program(env={"TOKEN": "env:T"}), "environment", {})
    assert "TOKEN" in result.text
    assert "WYE_API_KEYS" not in result.text
    assert "s3cret-value" not in result.text
    assert result.text.endswith("TOKEN=***")


async def test_a_program_that_died_is_started_again_for_the_next_call(box: ToolBox) -> None:
    described = as_program()
    with pytest.raises(ToolOutcomeUnknown):
        await call(box, described, "die", {})
    assert (await call(box, described, "add", {"a": 1, "b": 1})).value == {"result": 2}


async def test_a_program_that_is_not_there_says_so(box: ToolBox) -> None:
    described = McpServer.from_wire({"label": "gone", "command": ["/no/such/program"]}, environ={})
    with pytest.raises(ToolFailed, match=r"gone.*cannot be started: ./no/such/program.: No such file"):
        await box.list_tools(described, caller=CALLER)


async def test_a_tenants_server_inside_is_refused(server: Server, box: ToolBox) -> None:
    described = McpServer.from_wire({"label": "x", "url": "https://127.0.0.1:9/mcp"})
    with pytest.raises(EgressDenied):
        await box.list_tools(described, caller=CALLER)


async def test_a_list_is_remembered(server: Server, box: ToolBox) -> None:
    async with over_http(server) as described:
        specs = await box.list_tools(described, caller=CALLER)
        server.mcp.add_tool(lambda: "new", name="new")
        assert [one.name for one in await box.list_tools(described, caller=CALLER)] == [one.name for one in specs]
        fresh = msgspec.structs.replace(described, list_ttl_s=0.0)
        assert "new" in [one.name for one in await box.list_tools(fresh, caller=CALLER)]
        await box.aclose()


def _programs() -> list[psutil.Process]:
    """Servers that run as programs of this process."""
    children = psutil.Process().children(recursive=True)
    return [one for one in children if "tests.extensions.tools.mcp_server" in words_of(one)]
