"""Tools of the server over sockets: the official client reads all of it, and nothing goes on for one that left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseOutputItem
from openai.types.responses.response_input_param import McpApprovalResponse
from openai.types.responses.response_output_item import McpApprovalRequest, McpCall, McpListTools
from openai.types.responses.tool_param import Mcp

from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.extensions.tools.mcp_server import Server
from tests.extensions.tools.service import Service
from tests.fakes import MODEL, RunningServer, ScriptedEngine, running_server
from tests.gateway.tools.saying import call, says_in_turn
from tests.gateway.wire import Body, chat

FILES: Mcp = {"type": "mcp", "server_label": "files", "require_approval": "never"}
ORDERS: Mcp = {"type": "mcp", "server_label": "wye", "require_approval": "always"}


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str, tools_file: Path) -> Iterator[RunningServer]:
    settings: dict[str, Any] = {"redis_url": redis_url, "tools_file": str(tools_file), "tool_format": "hermes"}
    with running_server(engine, model, api_keys=("ann",), **settings) as server:
        yield server


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="ann", max_retries=0) as sdk:
        yield sdk


@pytest.fixture
async def http(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": "Bearer ann"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as http:
        yield http


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it is about another thread
            await asyncio.sleep(0.01)


async def test_the_official_client_reads_items_and_events(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, call("add", a=2, b=3), "It is 5.")
    made = await sdk.responses.create(model=MODEL, input="hi", tools=[FILES])
    listed, called, _ = made.output
    assert isinstance(listed, McpListTools)
    assert "add" in [tool.name for tool in listed.tools]
    assert isinstance(called, McpCall)
    assert (called.output, called.error, called.status) == ("5", None, "completed")
    assert made.output_text == "It is 5."
    engine.script = says_in_turn(model, call("fail") + "\n" + call("add", a=2, b=3), "Half of it.")
    async with sdk.responses.stream(model=MODEL, input="hi", tools=[FILES]) as stream:
        told = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert {"response.mcp_list_tools.completed", "response.mcp_call.failed", "response.mcp_call.completed"} <= set(told)
    _, failed, done, _ = final.output
    assert isinstance(failed, McpCall)
    assert failed.error is not None
    assert failed.error.type == "mcp_tool_execution_error"
    assert isinstance(done, McpCall)
    assert done.output == "5"
    assert final.output_text == "Half of it."


async def test_the_official_client_approves_a_call(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel, service: Service
) -> None:
    engine.script = says_in_turn(model, call("order", city="Oslo"), "Ordered.")
    first = await sdk.responses.create(model=MODEL, input="hi", tools=[ORDERS])
    asked: ResponseOutputItem = first.output[-1]
    assert isinstance(asked, McpApprovalRequest)
    yes: McpApprovalResponse = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    async with sdk.responses.stream(model=MODEL, input=[yes], tools=[ORDERS], previous_response_id=first.id) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "Ordered."
    assert len(service.calls) == 1


async def test_the_official_client_reads_a_chat(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel
) -> None:
    extra = {"server_tools": ["weather"]}
    engine.script = says_in_turn(model, call("weather", city="Oslo"), "It is 21 degrees.")
    messages: Any = [{"role": "user", "content": "hi"}]
    made = await sdk.chat.completions.create(model=MODEL, messages=messages, extra_body=extra)
    message = made.choices[0].message
    assert message.content == "It is 21 degrees."
    assert message.model_extra is not None
    assert message.model_extra["server_tool_calls"][0]["status"] == "completed"
    engine.script = says_in_turn(model, call("weather", city="Oslo"), "It is 21 degrees.")
    async with sdk.chat.completions.stream(model=MODEL, messages=messages, extra_body=extra) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == "It is 21 degrees."
    assert final.choices[0].finish_reason == "stop"


SLOW = call("slow", city="Oslo")
CHAT: tuple[str, Body] = ("/v1/chat/completions", chat(server_tools=["slow"]))
RESPONSE: tuple[str, Body] = (
    "/v1/responses",
    {"model": MODEL, "input": "hi", "tools": [{"type": "mcp", "server_label": "wye", "require_approval": "never"}]},
)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), [CHAT, RESPONSE], ids=["chat", "response"])
async def test_a_call_ends_when_its_client_leaves(
    http: httpx.AsyncClient,
    server: RunningServer,
    engine: ScriptedEngine,
    model: TextModel,
    service: Service,
    path: str,
    body: Body,
    is_streamed: bool,
) -> None:
    engine.script = says_in_turn(model, SLOW, "Done.")
    asking = asyncio.create_task(http.post(path, json={**body, "stream": is_streamed, "max_tokens": 400}))
    await service.called.wait()
    asking.cancel()
    async with asyncio.timeout(60):
        await service.given_up.wait()
    await eventually(lambda: server.num_active == 0 and not engine.streams)
    assert len(engine.requests) == 1


async def test_a_call_of_an_mcp_server_ends_when_its_client_leaves(
    http: httpx.AsyncClient, server: RunningServer, engine: ScriptedEngine, model: TextModel, mcp: Server
) -> None:
    engine.script = says_in_turn(model, call("slow"), "Done.")
    body = chat(server_tools=["files/slow"], max_tokens=400)
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    await mcp.called.wait()
    asking.cancel()
    async with asyncio.timeout(60):
        await mcp.cancelled.wait()
    await eventually(lambda: server.num_active == 0)


async def test_a_later_round_ends_when_its_client_leaves(
    http: httpx.AsyncClient, server: RunningServer, engine: ScriptedEngine, model: TextModel
) -> None:
    first = says_in_turn(model, call("weather", city="Oslo"))
    engine.script = lambda request, index: first(request, index) if len(engine.requests) == 1 else [[40], 1000.0]
    body = chat(server_tools=["weather"], max_tokens=400, stream=True)
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
    await eventually(lambda: len(engine.requests) == 2)
    asking.cancel()
    await eventually(lambda: server.num_active == 0 and not engine.streams)
    assert len(engine.aborted) == 1


async def test_a_cancelled_response_in_the_background_ends_its_call(
    http: httpx.AsyncClient, server: RunningServer, engine: ScriptedEngine, model: TextModel, service: Service
) -> None:
    engine.script = says_in_turn(model, SLOW, "Done.")
    made = (await http.post(RESPONSE[0], json={**RESPONSE[1], "background": True})).json()
    await service.called.wait()
    ended = (await http.post(f"/v1/responses/{made['id']}/cancel")).json()
    assert ended["status"] == "cancelled"
    assert [item["status"] for item in ended["output"] if item["type"] == "mcp_call"] == ["incomplete"]
    async with asyncio.timeout(60):
        await service.given_up.wait()
    await eventually(lambda: server.num_active == 0)


async def test_a_failure_of_the_engine_in_a_later_round_is_told(
    http: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    first = says_in_turn(model, call("weather", city="Oslo"))
    died = EngineStopped("the engine process ended")
    engine.script = lambda request, index: first(request, index) if len(engine.requests) % 2 else [[40], died]
    body = chat(server_tools=["weather"], max_tokens=400)
    whole = await http.post("/v1/chat/completions", json=body)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "engine_stopped")
    assert "x-should-retry" not in whole.headers  # to ask for the weather again does no harm
    streamed = await http.post("/v1/chat/completions", json={**body, "stream": True})
    assert '"error":{"message":"the engine process ended"' in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")


async def test_official_clients_do_not_repeat_a_request_that_has_done_something(
    server: RunningServer, engine: ScriptedEngine, model: TextModel, service: Service
) -> None:
    first = says_in_turn(model, call("order", city="Oslo"))
    died = EngineStopped("the engine process ended")
    engine.script = lambda request, index: first(request, index) if len(engine.requests) % 2 else [[40], died]
    messages: Any = [{"role": "user", "content": "hi"}]
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="ann", max_retries=2) as sdk:
        with pytest.raises(openai.InternalServerError):
            await sdk.chat.completions.create(model=MODEL, messages=messages, extra_body={"server_tools": ["order"]})
    assert len(service.calls) == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_request_with_a_key_does_its_work_once(
    http: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, service: Service, path: str
) -> None:
    body = chat(server_tools=["order"], max_tokens=400) if "chat" in path else RESPONSE[1]
    answers = []
    for key in ("one", "one", "two"):
        engine.script = says_in_turn(model, call("order", city="Oslo"), "Ordered.")
        answers.append(await http.post(path, json=body, headers={"Idempotency-Key": key}))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len(service.calls) == 2
    engine.script = says_in_turn(model, call("order", city="Bern"), "Ordered.")
    await http.post(path, json=body, headers={"Idempotency-Key": "one"})
    assert len(service.calls) == 3  # another order, by the same name
    assert (await http.post(path, json=body, headers={"Idempotency-Key": "x" * 300})).status_code == 400
