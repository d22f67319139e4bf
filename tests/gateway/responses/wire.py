"""Requests to /v1/responses and readers of what comes back."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.fakes import MODEL, ScriptedEngine
from tests.gateway.wire import Body, error_of

RESPONSES = "/v1/responses"

FIELDS = {
    "id",
    "object",
    "created_at",
    "status",
    "background",
    "completed_at",
    "conversation",
    "error",
    "incomplete_details",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "output",
    "parallel_tool_calls",
    "presence_penalty",
    "frequency_penalty",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "usage",
    "user",
}
"""Every field of a response object, always."""


def ask(**fields: Any) -> Body:
    """A small request; a field given here replaces the default."""
    return {"model": MODEL, "input": "hi", **fields}


async def create(client: httpx.AsyncClient, **fields: Any) -> Body:
    """A request that must be answered."""
    answer = await client.post(RESPONSES, json=ask(**fields))
    assert answer.status_code == 200, answer.text
    body: Body = answer.json()
    assert body.keys() == FIELDS
    return body


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> Body:
    """A GET below /v1 that must be answered."""
    answer = await client.get("/v1/" + path, params=params)
    assert answer.status_code == 200, answer.text
    body: Body = answer.json()
    return body


async def refuse(client: httpx.AsyncClient, *, param: str | None, status: int = 400, **fields: Any) -> Body:
    """A request that must be refused before any work."""
    error = error_of(await client.post(RESPONSES, json=ask(**fields)), status)
    assert error["param"] == param, error
    return error


def events_of(raw: str) -> list[Body]:
    """The events of a whole stream; checks names, types and numbers."""
    events = []
    for block in raw.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            events.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {events[-1]['type']}"
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return events


async def stream(client: httpx.AsyncClient, **fields: Any) -> list[Body]:
    """Events of a streaming request that must be accepted."""
    answer = await client.post(RESPONSES, json=ask(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert events[0]["sequence_number"] == 0
    assert all(event["response"].keys() == FIELDS for event in events if "response" in event)
    return events


async def replay(client: httpx.AsyncClient, response_id: str, **params: Any) -> list[Body]:
    """Events of a stored response."""
    answer = await client.get(f"{RESPONSES}/{response_id}", params={"stream": "true", **params})
    assert answer.status_code == 200, answer.text
    return events_of(answer.text) if answer.text else []


def kinds(events: list[Body]) -> list[str]:
    """Types of events without the common beginning, equal ones in a row once."""
    short = [event["type"].removeprefix("response.") for event in events]
    return [kind for at, kind in enumerate(short) if at == 0 or short[at - 1] != kind]


def text_of(response: Body) -> str:
    """The text of all messages."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def prompt_of(engine: ScriptedEngine, model: Any) -> str:
    """The newest prompt as text."""
    text: str = model.tokenizer.decode(engine.last.prompt_ids, skip_special=False)
    return text
