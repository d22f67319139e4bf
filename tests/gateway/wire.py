"""Request bodies and readers of answers, as the cases of tests/gateway spell them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.fakes import MODEL

Body = dict[str, Any]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def chat(**fields: Any) -> Body:
    """A small chat request; a field given here replaces the default."""
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 32, **fields}


def text(**fields: Any) -> Body:
    """A small text completion request."""
    return {"model": MODEL, "prompt": "hi", "max_tokens": 8, **fields}


def data_lines(raw: str) -> list[str]:
    """The payloads of a whole event stream; checks that it is made of data events and comments alone."""
    events = [line for line in raw.split("\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in events), events
    return [line.removeprefix("data: ") for line in events]


def chunks(raw: str) -> list[Body]:
    """The chunks of a whole event stream that ends in [DONE]."""
    *payloads, last = data_lines(raw)
    assert last == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def joined(parts: list[Body], index: int = 0) -> str:
    """The text of one choice, of chat or text chunks."""
    choices = [choice for chunk in parts for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


def endings(parts: list[Body], index: int = 0) -> list[str]:
    """All finish reasons of one choice that are not null."""
    choices = [choice for chunk in parts for choice in chunk["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


async def stream(client: httpx.AsyncClient, body: Body, path: str = CHAT) -> list[Body]:
    """Sends a streaming request that must be accepted; returns its chunks."""
    answer = await client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    return chunks(answer.text)


async def whole(client: httpx.AsyncClient, body: Body, path: str = CHAT) -> Body:
    """Sends a request that must be answered whole."""
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    result: Body = answer.json()
    return result


async def refused(
    client: httpx.AsyncClient, body: Body, path: str = CHAT, *, status: int = 400, param: str | None = None
) -> Body:
    """Sends a request that must be refused in the error shape, naming `param` if given; the server must go on."""
    answer = await client.post(path, json=body)
    error = error_of(answer, status)
    if param is not None:
        assert error["param"] == param, error
    assert (await client.get("/health")).status_code == 200
    return error


def error_of(answer: httpx.Response, status: int) -> Body:
    """The error of an answer, after checking its shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error: Body = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    return error


async def read_events(answer: httpx.Response) -> AsyncIterator[Body]:
    """Chunks of a response that is still being received; ends at [DONE]."""
    async for line in answer.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))
