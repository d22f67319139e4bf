"""What is answered about tools, and with tools, is what the API's description says of it."""

from __future__ import annotations

import json

import httpx
import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.test_answered import check_answer, check_event
from tests.gateway.test_messages import TOOL
from tests.gateway.tools.saying import call, prompts, says_in_turn
from tests.gateway.wire import CHAT, Body, chat, stream, whole

SAID = "Well. " + "\n".join((call("weather", city="Oslo"), call("fail"), call("late", city="x"), call("add", a="x")))
FILES: Body = {"type": "mcp", "server_label": "files", "require_approval": "never"}
OWN: Body = {"type": "mcp", "server_label": "wye", "require_approval": {"never": {"tool_names": ["late"]}}}


@pytest.fixture
async def description(client: httpx.AsyncClient) -> Body:
    found: Body = (await client.get("/openapi.json")).json()
    return found


async def test_chats_are_answered_as_described(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, description: Body
) -> None:
    body = chat(server_tools=["weather", "late", "files"], tools=[TOOL], max_tokens=1000, logprobs=True)
    engine.script = says_in_turn(model, SAID, call("get_weather", city="Bern"))
    check_answer(description, "POST /v1/chat/completions", await whole(client, body))
    engine.script = says_in_turn(model, SAID, call("get_weather", city="Bern"))
    for part in await stream(client, {**body, "stream_options": {"include_usage": True}}):
        check_event(description, "POST /v1/chat/completions", part)


async def test_responses_are_answered_as_described(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, description: Body
) -> None:
    body: Body = {"input": "hi", "tools": [FILES, OWN], "max_tool_calls": 3}
    engine.script = says_in_turn(model, SAID, call("order", city="Oslo"))
    streamed = await client.post("/v1/responses", json={**body, "stream": True})
    for line in streamed.text.splitlines():
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            check_event(description, "POST /v1/responses", event)
            if "response" in event:
                check_answer(description, "POST /v1/responses", event["response"])
    final = event["response"]
    assert {item["type"] for item in final["output"]} >= {"mcp_list_tools", "mcp_call", "message"}
    answered: Body = {
        "input": [{"role": "user", "content": "hi"}, *final["output"]],
        "tools": [FILES, OWN],
    }
    asked = [item["id"] for item in final["output"] if item["type"] == "mcp_approval_request"]
    no = [{"type": "mcp_approval_response", "approval_request_id": one, "approve": False} for one in asked]
    made = await client.post("/v1/responses", json={**answered, "input": [*answered["input"], *no]})
    assert made.status_code == 200, made.text
    check_answer(description, "POST /v1/responses", made.json())
    listed = await client.get(f"/v1/responses/{made.json()['id']}/input_items", params={"limit": 100})
    check_answer(description, "GET /v1/responses/{response_id}/input_items", listed.json())


async def test_tools_are_told_as_described(client: httpx.AsyncClient, description: Body) -> None:
    server = {"label": "mine", "url": "https://a.example/mcp", "require_approval": {"always": ["x"], "never": ["y"]}}
    check_answer(description, "POST /v1/tools", (await client.post("/v1/tools", json=server)).json())
    check_answer(description, "GET /v1/tools", (await client.get("/v1/tools")).json())
    for name in ("mine", "weather"):
        check_answer(description, "GET /v1/tools/{tool_id}", (await client.get(f"/v1/tools/{name}")).json())
    tests: tuple[tuple[str, Body], ...] = (("files", {}), ("weather", {"arguments": {"city": "Oslo"}}))
    for name, body in tests:
        tested = (await client.post(f"/v1/tools/{name}/test", json=body)).json()
        check_answer(description, "POST /v1/tools/{tool_id}/test", tested)
    check_answer(description, "DELETE /v1/tools/{tool_id}", (await client.delete("/v1/tools/mine")).json())


async def test_what_is_rendered_is_what_the_model_is_given(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    body = chat(server_tools=["weather", "files/add"], tools=[TOOL])
    rendered = await whole(client, body, CHAT + "/render")
    await whole(client, body)
    assert prompts(engine, model) == [rendered["prompt"]]
