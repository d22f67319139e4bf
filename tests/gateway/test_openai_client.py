"""The official client on a real server over a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import openai
import pytest

from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.fakes import MODEL, RunningServer, ScriptedEngine, repeats, running_server, says

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel) -> Iterator[RunningServer]:
    """A real server with a key."""
    with running_server(engine, model, heartbeat_s=0.05, api_keys=("k1",)) as server:
        yield server


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client, with its usual retries."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k1") as sdk:
        yield sdk


async def test_a_chat_is_answered_whole(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


async def test_g_02_the_role_of_a_streamed_message_is_said_once(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine
) -> None:
    engine.script = repeats(40)
    async with sdk.chat.completions.stream(
        model=MODEL, messages=MESSAGES, max_tokens=5, extra_body={"ignore_eos": True}
    ) as stream:
        # The helper raises at the end of a text that was cut by length, which is its way of saying so.
        with pytest.raises(openai.LengthFinishReasonError) as cut:
            await stream.get_final_completion()
    final = cut.value.completion
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].finish_reason == "length"


async def test_a_stream_with_usage_is_read_to_its_end(sdk: openai.AsyncOpenAI) -> None:
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello there."
    assert chunks[-1].usage is not None


async def test_g_10_a_stream_that_idles_between_heartbeats_is_read(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel
) -> None:
    ids = model.tokenizer.encode("slow", add_special=False)
    engine.script = lambda request, index: [0.25, ids[:1], 0.25, ids[1:]]
    stream = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    text = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(text) == "slow"


async def test_g_13_a_failure_in_a_stream_is_raised(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], [41], [42], EngineStopped("the engine process ended")]
    stream = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    chunks: list[openai.types.chat.ChatCompletionChunk] = []
    with pytest.raises(openai.APIError, match="the engine process ended"):
        await _read_into(chunks, stream)
    assert len(chunks) >= 3


async def _read_into(
    chunks: list[openai.types.chat.ChatCompletionChunk],
    stream: openai.AsyncStream[openai.types.chat.ChatCompletionChunk],
) -> None:
    async for chunk in stream:
        chunks.append(chunk)  # noqa: PERF401 - what came before the failure must be kept


async def test_logprobs_are_read(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(byte for entry in logprobs.content for byte in entry.bytes or []) == b"Hello there."
    assert len(logprobs.content[0].top_logprobs) == 2


async def test_text_completions_are_read(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.completions.create(model=MODEL, prompt=["a", "b"], n=2, echo=True, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[2].text == "bHello there."
    stream = await sdk.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello there."


async def test_models_are_listed_and_retrieved(sdk: openai.AsyncOpenAI) -> None:
    assert [entry.id async for entry in sdk.models.list()] == [MODEL]
    assert (await sdk.models.retrieve(MODEL)).id == MODEL
    with pytest.raises(openai.NotFoundError):
        await sdk.models.retrieve("nope/nope")


async def test_errors_arrive_as_their_classes(sdk: openai.AsyncOpenAI, server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        await sdk.chat.completions.create(model="nope", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        await sdk.with_options(api_key="wrong").models.list()


async def test_g_51_a_client_error_is_tried_once(sdk: openai.AsyncOpenAI, server: RunningServer) -> None:
    raw = b'{"messages":[{"role":"user","content":"emoji \\ud83d"}]}'
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.post(
            "/chat/completions",
            content=raw,
            options={"headers": {"content-type": "application/json"}},
            cast_to=openai.types.chat.ChatCompletion,
        )
    assert bad.value.param == "messages[0].content"
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        metrics = (await client.get("/metrics")).text
    assert 'wye_http_requests_total{method="POST",route="/v1/chat/completions",status="400"} 1.0' in metrics


async def test_closing_a_stream_ends_the_work(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], 600.0]
    stream = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    async for _ in stream:
        break
    await stream.close()
    for _ in range(6000):
        if not engine.streams:
            break
        await asyncio.sleep(0.01)
    assert engine.aborted


def test_the_blocking_client_works_too(server: RunningServer, engine: ScriptedEngine, model: TextModel) -> None:
    engine.script = says(model, "blocking")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="k1") as sdk:
        answer = sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == "blocking"
