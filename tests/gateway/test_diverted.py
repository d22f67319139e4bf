"""Streams whose steps are written as they come, past the task that reads them: clients see the same bytes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from engine.errors import EngineStopped
from engine.request import GenerateRequest
from engine.text.model import TextModel
from extensions.output import Usage
from gateway.app import create_app
from gateway.sse import BODY_WRITER
from gateway.translate.chunks import encode_json
from gateway.translate.usage import usage_body, usage_json
from tests.fakes import MODEL, Action, ScriptedEngine, make_settings, running_server, scripted_client
from tests.gateway.wire import CHAT, TEXT, Body, chat, chunks, data_lines, joined, text

PAUSE_S = 0.002
WORDS = "Größe, naïve 日本語 and 🙂 go home. And home."
RESPONSES = "/v1/responses"
RUNNING_USAGE = {"include_usage": True, "continuous_usage_stats": True}

_VARYING = re.compile(r'(?<=")[a-z]+[-_][0-9a-f]{20,}(?=")|(?<=_at":)\d+|(?<="created":)\d+')


def slow_engine(model: TextModel, *last: Action) -> ScriptedEngine:
    """An engine whose tokens come one by one, to readers who wait for them."""
    ids = model.tokenizer.encode(WORDS, add_special=False)

    def script(request: GenerateRequest, index: int) -> Sequence[Action]:
        return [*(action for token_id in ids for action in ([token_id], PAUSE_S)), *last]

    return ScriptedEngine(model, script)


def events_of(answer: httpx.Response) -> list[str]:
    """All events of a stream, but for what is new in every answer."""
    assert answer.status_code == 200, answer.text
    return [_VARYING.sub("x", event) for event in answer.text.split("\n\n")]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, chat(max_tokens=50)),
        (CHAT, chat(max_tokens=50, stream_options=RUNNING_USAGE)),
        (CHAT, chat(max_tokens=50, logprobs=True, top_logprobs=2)),
        (CHAT, chat(max_tokens=50, return_token_ids=True)),
        (CHAT, chat(max_tokens=50, stop=["home. A"])),
        (TEXT, text(max_tokens=50)),
        (TEXT, text(max_tokens=50, stream_options=RUNNING_USAGE)),
        (TEXT, text(max_tokens=50, logprobs=1, echo=True)),
        (TEXT, text(max_tokens=50, stop="home")),
        (RESPONSES, {"model": MODEL, "input": "hi", "max_output_tokens": 50}),
    ],
)
async def test_a_client_sees_the_same_bytes(model: TextModel, path: str, body: Body) -> None:
    body = {**body, "stream": True}
    reading, diverting = slow_engine(model), slow_engine(model)
    async with scripted_client(reading, model) as client:
        read = events_of(await client.post(path, json=body))
    with running_server(diverting, model) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            diverted = events_of(await client.post(path, json=body))
    assert diverted == read
    assert reading.num_taken == 0
    assert diverting.num_taken > 10


async def test_whole_answers_are_collected_without_their_reader(model: TextModel) -> None:
    engine = slow_engine(model)
    async with scripted_client(engine, model) as client:
        answer = (await client.post(CHAT, json=chat(max_tokens=100, n=2))).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == [WORDS, WORDS]
    assert engine.num_taken > 20


async def test_a_failure_between_tokens_ends_the_stream_with_its_error(model: TextModel) -> None:
    engine = slow_engine(model, EngineStopped("the engine process ended"))
    with running_server(engine, model) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            *before, error, done = data_lines((await client.post(TEXT, json=text(max_tokens=90, stream=True))).text)
    assert '"error"' in error
    assert done == "[DONE]"
    assert joined(chunks("\n\n".join(f"data: {one}" for one in [*before, done]))) == WORDS
    assert engine.num_taken > 10


class NarrowWriter:
    """A connection's writer that is full after every third part."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.num_drained = 0
        self.is_free = True

    def write(self, data: bytes) -> bool:
        assert self.is_free
        self.parts.append(data)
        self.is_free = len(self.parts) % 3 > 0
        return self.is_free

    async def drain(self) -> None:
        await asyncio.sleep(3 * PAUSE_S)
        self.num_drained += 1
        self.is_free = True


async def test_a_connection_that_is_full_is_drained_before_more_is_written(model: TextModel) -> None:
    engine, writer = slow_engine(model), NarrowWriter()
    app = create_app(make_settings(), engine=engine, text=model)

    async def with_writer(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "extensions": {BODY_WRITER: writer}}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(with_writer), base_url="http://test") as client:
        await client.post(TEXT, json=text(max_tokens=90, stream=True))
    assert joined(chunks(b"".join(writer.parts).decode())) == WORDS
    assert writer.num_drained >= 3
    assert engine.num_taken > 5


def test_usage_that_is_told_with_every_token_is_what_is_told_at_the_end() -> None:
    usage = Usage(num_prompt_tokens=11, num_completion_tokens=7, num_cached_tokens=5, num_reasoning_tokens=3)
    usage.num_drafted_tokens, usage.num_accepted_tokens = 20, 13
    assert usage_json(usage) == encode_json(usage_body(usage))
