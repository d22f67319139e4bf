"""Answers are what the API's description says of them, key by key, and every route is described."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
from fastapi.routing import APIRoute

from engine.text.model import TextModel
from gateway.answered import ANSWERS, EVENTS
from gateway.app import create_app
from tests.fakes import MODEL, ScriptedEngine, make_settings, says, scripted_client
from tests.gateway.responses.wire import RESPONSES, ask
from tests.gateway.test_tools import MARKED, TOOLS
from tests.gateway.wire import CHAT, TEXT, Body, chat, stream, text, whole

UNTOLD = ("/metrics", "/v1/files/{file_id}/content")
"""Paths whose answers the description does not tell key by key."""
THINKS = f"<think>hm</think>Well. {MARKED}"
CHATS: dict[str, tuple[str, Body]] = {
    "plain": ("Hello there.", {}),
    "several": ("Hello there.", {"n": 2, "stop": ["there"]}),
    "logprobs": ("Hello 🚀", {"logprobs": True, "top_logprobs": 2}),
    "ids": ("Hello there.", {"return_token_ids": True, "stop_token_ids": [5]}),
    "thinking and calls": (THINKS, {"tools": TOOLS, "max_tokens": 200}),
    "usage": ("Hello there.", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "cut": ("Hello there.", {"max_tokens": 1}),
    "kept": ("Hello there.", {"retention": {"ttl_s": 60}}),
}
TEXTS: dict[str, tuple[str, Body]] = {
    "plain": ("Hello there.", {}),
    "several": ("Hello there.", {"n": 2, "prompt": ["a", "b"], "stop": ["there"]}),
    "logprobs": ("Hello 🚀", {"logprobs": 2, "echo": True}),
    "ids": ("Hello there.", {"return_token_ids": True, "stop_token_ids": [5]}),
    "usage": ("Hello there.", {"stream_options": {"include_usage": True}}),
    "kept": ("Hello there.", {"retention": {"ttl_s": 60}}),
}


@pytest.fixture
async def description(client: httpx.AsyncClient) -> Body:
    found: Body = (await client.get("/openapi.json")).json()
    return found


@pytest.fixture
async def keeping(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app that keeps responses."""
    async with scripted_client(engine, model, redis_url=redis_url) as client:
        yield client


def check(description: Body, schema: Any, value: object) -> None:
    jsonschema_rs.validate({**schema, "components": description["components"]}, value)


def check_answer(description: Body, operation: str, value: object) -> None:
    verb, path = operation.split(" ")
    content = description["paths"][path][verb.lower()]["responses"]["200"]["content"]
    check(description, content["application/json"]["schema"], value)


def check_event(description: Body, operation: str, value: object) -> None:
    check(description, {"$ref": f"#/components/schemas/{EVENTS[operation].__name__}"}, value)


async def test_what_is_served_is_described_and_the_other_way_round(
    engine: ScriptedEngine, model: TextModel, description: Body
) -> None:
    app = create_app(make_settings(), engine=engine, text=model)
    nested = [getattr(one, "original_router", None) for one in app.routes]
    routes = [*app.routes, *(route for router in nested if router is not None for route in router.routes)]
    served = {
        f"{method} {route.path.replace(':path', '')}"
        for route in routes
        if isinstance(route, APIRoute) and not route.path.startswith("/console")  # a page, for people
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {f"{verb.upper()} {path}" for path, verbs in description["paths"].items() for verb in verbs}
    assert served == described
    told = {name for name in described if not name.partition(" ")[2].startswith(UNTOLD)}
    assert told == ANSWERS.keys() | EVENTS.keys()
    assert EVENTS.keys() - ANSWERS.keys() == {"GET /v1/runs/{run_id}/events"}


@pytest.mark.parametrize(("said", "fields"), CHATS.values(), ids=CHATS)
async def test_chats_are_answered_as_described(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, description: Body, said: str, fields: Body
) -> None:
    engine.script = says(model, said)
    body = chat(**fields)
    for part in await stream(client, body):
        check_event(description, "POST /v1/chat/completions", part)
    body.pop("stream_options", None)
    check_answer(description, "POST /v1/chat/completions", await whole(client, body))
    check_answer(description, "POST /v1/chat/completions", await whole(client, {**body, "prompt_logprobs": 1}))
    check_answer(description, "POST /v1/chat/completions/render", await whole(client, body, CHAT + "/render"))


@pytest.mark.parametrize(("said", "fields"), TEXTS.values(), ids=TEXTS)
async def test_texts_are_answered_as_described(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, description: Body, said: str, fields: Body
) -> None:
    engine.script = says(model, said)
    body = text(**fields)
    for part in await stream(client, body, TEXT):
        check_event(description, "POST /v1/completions", part)
    body.pop("stream_options", None)
    check_answer(description, "POST /v1/completions", await whole(client, body, TEXT))
    check_answer(description, "POST /v1/completions", await whole(client, {**body, "prompt_logprobs": 1}, TEXT))


@pytest.mark.parametrize(
    ("said", "fields"),
    [("Hello.", {}), (THINKS, {"tools": TOOLS}), ("Hello.", {"n": 1}), ("Hello.", {"retention": {"ttl_s": 60}})],
)
async def test_responses_are_answered_as_described(
    keeping: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, description: Body, said: str, fields: Body
) -> None:
    engine.script = says(model, said)
    tools = [{"type": "function", **tool["function"]} for tool in fields.get("tools", [])]
    body = ask(tools=tools, metadata={"a": "b"}, instructions="Be brief.")
    for operation in ("POST /v1/responses", "GET /v1/responses/{response_id}"):
        answer = await whole(keeping, body, RESPONSES)
        if operation.startswith("GET"):
            answer = (await keeping.get(f"{RESPONSES}/{answer['id']}")).json()
        check_answer(description, operation, answer)
    streamed = await keeping.post(RESPONSES, json={**body, "stream": True})
    for line in streamed.text.splitlines():
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            check_event(description, "POST /v1/responses", event)
            if "response" in event:
                check_answer(description, "POST /v1/responses", event["response"])


async def test_whatever_is_kept_is_answered_as_described(keeping: httpx.AsyncClient, description: Body) -> None:
    told: set[str] = set()

    async def send(operation: str, body: Body | None = None, **ids: str) -> Body:
        verb, path = operation.split(" ")
        answer = await keeping.request(verb, path.format(**ids), json=body)
        assert answer.status_code == 200, answer.text
        check_answer(description, operation, answer.json())
        told.add(operation)
        found: Body = answer.json()
        return found

    response = await send("POST /v1/responses", ask(background=True))
    ids = {"response_id": response["id"], "model_id": MODEL}
    await send("POST /v1/responses/input_tokens", ask())
    await send("GET /v1/responses/{response_id}", **ids)
    await send("GET /v1/responses/{response_id}/input_items", **ids)
    await send("POST /v1/responses/{response_id}/cancel", **ids)
    await send("DELETE /v1/responses/{response_id}", **ids)
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "output_text", "text": "a"}]},
    ]
    conversation = await send("POST /v1/conversations", {"items": items, "metadata": {"a": "b"}})
    ids["conversation_id"] = conversation["id"]
    await send("GET /v1/conversations/{conversation_id}", **ids)
    await send("POST /v1/conversations/{conversation_id}", {"metadata": {}}, **ids)
    await send("POST /v1/conversations/{conversation_id}/items", {"items": items}, **ids)
    for item in (await send("GET /v1/conversations/{conversation_id}/items", **ids))["data"]:
        ids["item_id"] = item["id"]
        await send("GET /v1/conversations/{conversation_id}/items/{item_id}", **ids)
    await send("DELETE /v1/conversations/{conversation_id}/items/{item_id}", **ids)
    await send("DELETE /v1/conversations/{conversation_id}", **ids)
    assert told == {name for name in ANSWERS if "responses" in name or "conversations" in name}


async def test_what_a_server_does_now_is_answered_as_described(
    client: httpx.AsyncClient, engine: ScriptedEngine, description: Body
) -> None:
    waiting = "async def main(request, lm):\n    ctx = await lm.context('x')\n    await lm.sleep(60)\n"
    running = asyncio.create_task(client.post(CHAT, json=chat(extension={"source": waiting})))
    now: Body = {"programs": []}
    async with asyncio.timeout(60):
        while [program["contexts"] for program in now["programs"]] != [1]:
            now = (await client.get("/v1/admin/overview")).json()
            check_answer(description, "GET /v1/admin/overview", now)
            await asyncio.sleep(0.01)
    check_answer(description, "GET /v1/admin/kv", (await client.get("/v1/admin/kv")).json())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    engine.die()
    check_answer(description, "GET /v1/admin/overview", (await client.get("/v1/admin/overview")).json())


async def test_what_a_program_does_is_answered_as_described(client: httpx.AsyncClient, description: Body) -> None:
    source = "async def main(request, lm):\n    return (await (await lm.context('x')).generate(max_tokens=2)).text\n"
    body = chat(extension={"source": source, "trace": True})
    answer = await whole(client, body)
    check_answer(description, "POST /v1/chat/completions", answer)
    assert [note["type"] for note in answer["extension"]["trace"]][:2] == ["context.open", "generate.start"]
    parts = await stream(client, {**body, "stream": True})
    for part in parts:
        check_event(description, "POST /v1/chat/completions", part)
    told = [part["extension"]["trace"]["type"] for part in parts if "trace" in (part.get("extension") or {})]
    assert told == [note["type"] for note in answer["extension"]["trace"]]


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_tokens_are_answered_as_described(client: httpx.AsyncClient, description: Body, prefix: str) -> None:
    body = {"prompt": "Hello", "return_token_strs": True}
    answer = await whole(client, body, f"{prefix}/tokenize")
    check_answer(description, f"POST {prefix}/tokenize", answer)
    answer = await whole(client, {"tokens": answer["tokens"]}, f"{prefix}/detokenize")
    check_answer(description, f"POST {prefix}/detokenize", answer)


@pytest.mark.parametrize("encoding_format", ["float", "base64"])
async def test_embeddings_are_answered_as_described(
    client: httpx.AsyncClient, description: Body, encoding_format: str
) -> None:
    body = {"input": ["a", "b"], "encoding_format": encoding_format}
    check_answer(description, "POST /v1/embeddings", await whole(client, body, "/v1/embeddings"))


@pytest.mark.parametrize("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"])
async def test_scores_and_rankings_are_answered_as_described(
    client: httpx.AsyncClient, description: Body, path: str
) -> None:
    body = {"text_1": "a", "text_2": ["b", "c"], "query": "a", "documents": ["b", "c"]}
    for returns_documents in (None, True, False):
        answer = await whole(client, {**body, "return_documents": returns_documents}, path)
        check_answer(description, f"POST {path}", answer)


@pytest.mark.parametrize("path", ["/", "/v1/models", "/v1/models/{model_id}", "/health", "/ping", "/ready", "/version"])
async def test_questions_about_the_server_are_answered_as_described(
    client: httpx.AsyncClient, description: Body, path: str
) -> None:
    check_answer(description, f"GET {path}", (await client.get(path.format(model_id=MODEL))).json())


async def test_a_key_that_is_not_told_would_be_noticed(client: httpx.AsyncClient, description: Body) -> None:
    answer = await whole(client, chat())
    with pytest.raises(jsonschema_rs.ValidationError):
        check_answer(description, "POST /v1/chat/completions", {**answer, "more": 1})
    del answer["usage"]["total_tokens"]
    with pytest.raises(jsonschema_rs.ValidationError):
        check_answer(description, "POST /v1/chat/completions", answer)
