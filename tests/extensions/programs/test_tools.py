"""Tools as programs call them, against a real service and real MCP servers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from extensions.errors import ScriptError, ScriptLimitExceeded
from extensions.tools.box import ToolBox
from extensions.tools.egress import EgressPolicy
from extensions.tools.errors import ToolOutcomeUnknown
from extensions.tools.scripts import ScriptTools
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from tests.extensions.programs.stage import Stage, main_of, until
from tests.extensions.programs.tool_world import tool, world_of
from tests.extensions.tools.service import Service, served

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "name": {}}, "required": ["city"]}


TALK = """
async def main(request, lm):
    for at in range(5):
        lm.now()
    ctx = await lm.context("Hello")
    return (await ctx.generate(max_tokens=20)).text
"""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service that runs."""
    one = Service()
    async with served(one.app()) as url:
        one.url = url
        yield one
        one.release.set()


@pytest.fixture
async def tools(stage: Stage, service: Service) -> AsyncIterator[Stage]:
    """A stage whose programs have the service's tools."""
    egress = EgressPolicy.read(["127.0.0.1"], ["127.0.0.0/8"])
    box = ToolBox(egress=egress, scripts=ScriptTools(stage.runtime))
    command = [sys.executable, "-m", "tests.extensions.tools.mcp_server"]
    files = McpServer.from_wire({"label": "files", "command": command}, environ={})
    double = "async def main(request, lm):\n    return {'twice': request.args['n'] * 2}\n"
    number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    specs = [
        tool(service, "/weather/{city}", parameters=CITY),
        tool(service, "/echo", effect="once"),
        tool(service, "/fails"),
        tool(service, "/slow", timeout_s=60),
        tool(service, "/slow/unknown"),
        ToolSpec.from_wire({"name": "double", "kind": "script", "script": {"source": double}, "parameters": number}),
        ToolSpec.from_wire({"name": "talk", "kind": "script", "script": {"source": TALK}}),
        ToolSpec.from_wire({"name": "inside", "kind": "http", "http": {"url": "https://10.0.0.1/"}}),
        ToolSpec.from_wire({**tool(service, "/echo").to_wire(), "name": "order", "effect": "irreversible"}, environ={}),
        ToolSpec.from_wire(
            {**tool(service, "/slow").to_wire(), "name": "hurry", "effect": "once", "timeout_s": 2}, environ={}
        ),
    ]
    stage.world = world_of(
        box, [spec for spec in specs if spec.http is None or "unknown" not in spec.http.url], [files]
    )
    yield stage
    await box.aclose()


async def test_a_tool_answers_with_json_or_text(tools: Stage) -> None:
    found = await tools.value("""
        w = await lm.tool("weather", city="Oslo")
        e = await lm.tool("echo", name="n", tool="t")
        return [w, e["given"], await lm.tool("double", n=21)]
    """)
    assert found == [{"city": "Oslo", "degrees": 21}, {"name": "n", "tool": "t"}, {"twice": 42}]


@pytest.mark.parametrize(
    ("call", "kind", "code"),
    [
        ("lm.tool('nothing')", "LookupError", "tool_not_found"),
        ("lm.start_tool('nothing')", "LookupError", "tool_not_found"),
        ("lm.tool('weather')", "ValueError", "invalid_argument"),
        ("lm.tool('weather', city=3)", "ValueError", "invalid_argument"),
        ("lm.tool('fails')", "RuntimeError", "tool_failed"),
        ("lm.tool('hurry')", "RuntimeError", "tool_outcome_unknown"),
        ("lm.tool('inside')", "PermissionError", "egress_denied"),
        ("lm.mcp('nothing').tools()", "LookupError", "tool_not_found"),
        ("lm.http.get('https://example.com/')", "PermissionError", "egress_denied"),
        ("lm.http.get('http://169.254.169.254/latest/meta-data/')", "PermissionError", "egress_denied"),
        ("lm.http.get('http://[::ffff:169.254.169.254]/')", "PermissionError", "egress_denied"),
        ("lm.http.get('http://2852039166/')", "PermissionError", "egress_denied"),
        ("lm.http.get('http://127.0.0.1:1/')", "RuntimeError", "tool_failed"),
        ("lm.http.get('file:///etc/passwd')", "ValueError", "invalid_argument"),
        ("lm.http.post('http://127.0.0.1:1/', json=1, text='x')", "ValueError", "invalid_argument"),
    ],
)
async def test_what_goes_wrong_is_an_error_that_a_script_can_catch(
    tools: Stage, call: str, kind: str, code: str
) -> None:
    found = await tools.value(f"""
        try:
            await {call}
        except {kind} as error:
            return [str(error).partition(":")[0]]
    """)
    assert found == [code]


async def test_an_error_that_nobody_catches_is_typed_again_outside(tools: Stage) -> None:
    with pytest.raises(ScriptError) as caught:
        await tools.run(main_of("await lm.tool('hurry')"))
    assert caught.value.code == "tool_outcome_unknown"
    assert isinstance(caught.value.cause, ToolOutcomeUnknown)


async def test_without_tools_there_is_a_clear_word_for_it(stage: Stage) -> None:
    found = await stage.value("""
        codes = []
        for name in ["tool", "start", "loop", "mcp", "http"]:
            try:
                if name == "tool":
                    await lm.tool("weather")
                elif name == "start":
                    await lm.start_tool("weather")
                elif name == "loop":
                    await lm.tool_loop(await lm.context(request.messages))
                elif name == "mcp":
                    lm.mcp("files")
                else:
                    await lm.http.get("https://example.com/")
            except RuntimeError as error:
                codes.append(str(error).partition(":")[0])
        return [codes, "tools" in lm.model.capabilities]
    """)
    assert found == [["capability_missing"] * 5, False]


async def test_a_call_goes_on_beside_the_script(tools: Stage, service: Service) -> None:
    run = await tools.start(
        main_of("""
            call = await lm.start_tool("slow")
            early = None
            try:
                await call.result(timeout_s=0.01)
            except TimeoutError as error:
                early = str(error).partition(":")[0]
            status = call.status
            await lm.emit_event("waiting")
            answer = await call.result()
            return [early, status, answer, call.status, await call.cancel(), call.name]
        """)
    )
    async with run:
        async for _ in run:
            service.release.set()
        assert run.outcome.result == ["tool_timeout", "running", "done", "done", "done", "slow"]
    assert len(service.calls) == 1


ARRIVES = """
        call = await lm.start_tool("slow")
        while not (await lm.http.get(request.args["url"] + "/seen")).json:
            try:
                await call.result(timeout_s=0.02)
            except TimeoutError:
                pass
"""
"""Begins a call, and goes on when it has arrived."""


async def test_giving_a_call_up_closes_its_connection(tools: Stage, service: Service) -> None:
    found = await tools.value(
        ARRIVES
        + """
        came = await call.cancel()
        try:
            await call.result()
        except ValueError as error:
            return [came, call.status, str(error)]
        """,
        args={"url": service.url},
    )
    assert found == ["unknown", "cancelled", "invalid_argument: the call of slow was cancelled"]
    await asyncio.wait_for(service.given_up.wait(), 60)


async def test_what_cannot_be_undone_begins_only_when_its_result_is_asked_for(tools: Stage, service: Service) -> None:
    found = await tools.value("""
        first = await lm.start_tool("order", {"n": 1})
        second = await lm.start_tool("order", {"n": 2}, key="second")
        await lm.tool("weather", city="Oslo")
        return [first.status, await first.cancel(), (await second.result())["given"]]
    """)
    assert found == ["waiting", "not_started", {"n": 2}]
    assert [path for _, path, _, _ in service.calls] == ["/weather/Oslo", "/echo"]
    assert service.calls[1][2]["idempotency-key"] == "second"


async def test_the_end_of_a_run_ends_its_calls(tools: Stage, service: Service) -> None:
    await tools.run(main_of(ARRIVES + "        return 'bye'"), args={"url": service.url})
    await asyncio.wait_for(service.given_up.wait(), 60)
    assert service.calls[0][1] == "/slow"


async def test_a_cancelled_run_waits_for_no_tool(tools: Stage, service: Service) -> None:
    run = await tools.start(main_of("await lm.tool('slow')"))
    await asyncio.wait_for(service.called.wait(), 60)
    await run.aclose()
    await asyncio.wait_for(service.given_up.wait(), 60)


@pytest.mark.parametrize(
    ("limit", "call"),
    [
        ("tool_calls", "await lm.tool('weather', city='Oslo')"),
        ("tool_calls", "await lm.mcp('files').call('add', {'a': 1, 'b': 1})"),
        ("http_calls", "await lm.http.get(request.args['url'])"),
    ],
)
async def test_calls_are_counted_and_end_the_run_at_their_limit(
    tools: Stage, service: Service, limit: str, call: str
) -> None:
    body = f"""
        for i in range(4):
            try:
                {call}
            except Exception:
                pass
    """
    args = {"url": f"{service.url}/weather/Oslo"}
    with pytest.raises(ScriptLimitExceeded) as caught:
        await tools.run(main_of(body), args=args, limits={limit: 3})
    assert (caught.value.limit, caught.value.used) == (limit, 4)
    outcome = await tools.run(main_of(body), args=args, limits={limit: 4})
    used = outcome.usage.num_tool_calls if limit == "tool_calls" else outcome.usage.num_http_calls
    assert used == 4


async def test_an_mcp_server_is_listed_and_called(tools: Stage) -> None:
    found = await tools.value("""
        files = lm.mcp("files")
        names = [one["name"] for one in await files.tools()]
        five = await files.call("add", {"a": 2, "b": 3})
        return [files.server, names, five, await files.call("read", {"path": "/x"})]
    """)
    assert found[0] == "files"
    assert {"add", "read", "slow"} <= set(found[1])
    assert found[2:] == [{"result": 5}, "contents of /x"]


async def test_a_program_sends_requests_of_its_own(tools: Stage, service: Service) -> None:
    args: dict[str, Any] = {"url": service.url}
    found = await tools.value(
        """
        url = request.args["url"]
        got = await lm.http.get(url + "/weather/Oslo", headers={"X-A": "b"})
        sent = await lm.http.post(url + "/echo", json={"a": [1]})
        text = await lm.http.request("put", url + "/echo", text='"plain"')
        lost = await lm.http.get(url + "/fails")
        moved = await lm.http.get(url + "/redirects")
        return [got.status, got.json, sent.json["given"], text.json["given"], lost.status, lost.text, lost.json,
                moved.status, moved.headers]
        """,
        args=args,
    )
    where = {"location": "http://169.254.169.254/latest/meta-data"}
    assert found == [
        200, {"city": "Oslo", "degrees": 21}, {"a": [1]}, "plain", 404, "no such order", None, 307, where,
    ]  # fmt: skip
    assert service.calls[0][2]["x-a"] == "b"


async def test_a_tool_that_is_a_program_says_what_its_program_says(tools: Stage) -> None:
    found = await tools.value("""
        try:
            await lm.tool("double", n="x")
        except ValueError as error:
            return [str(error)]
    """)
    assert found[0].startswith("invalid_argument: double: arguments.n")
    await until(lambda: tools.programs.pool.num_running == 0)


async def test_a_tool_that_is_a_program_counts_against_the_limits_of_the_program_that_calls_it(tools: Stage) -> None:
    outcome = await tools.run(main_of('return await lm.tool("talk")'))
    assert outcome.usage.num_completion_tokens > 0
    assert outcome.usage.num_prompt_tokens > 0
    assert outcome.usage.num_generations == 1
    assert outcome.usage.num_host_calls >= 8
    used = outcome.usage.num_completion_tokens
    twice = main_of('await lm.tool("talk")\nreturn await lm.tool("talk")')
    for limits in ({"decode_tokens": used + 1}, {"host_calls": 10}):
        with pytest.raises(ScriptLimitExceeded) as caught:
            await tools.run(twice, limits=limits)
        assert caught.value.limit == next(iter(limits))


async def test_a_tool_may_use_no_more_contexts_than_its_caller_has_left(tools: Stage) -> None:
    body = """
        held = [await lm.context("x") for at in range(2)]
        try:
            await lm.tool("talk")
        except RuntimeError as error:
            failed = str(error)
            await held[0].release()
            return [failed, await lm.tool("talk") != ""]
    """
    failed, works = await tools.value(body, limits={"contexts": 2})
    assert "tool_failed" in failed
    assert works
