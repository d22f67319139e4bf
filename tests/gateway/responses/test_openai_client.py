"""The official client's helpers for responses and conversations, on a real server over a scripted engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from openai.types.responses import FunctionToolParam

from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.fakes import MODEL, RunningServer, ScriptedEngine, running_server, says

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": None,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str) -> Iterator[RunningServer]:
    """A real server with a key and a store."""
    with running_server(engine, model, redis_url=redis_url, api_keys=("k1",), tool_format="hermes") as server:
        yield server


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client, without retries."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k1", max_retries=0) as sdk:
        yield sdk


async def test_a_response_is_created_retrieved_and_deleted(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.responses.create(model=MODEL, input="hi")
    assert made.output_text == "Hello there."
    assert made.usage is not None
    assert made.usage.input_tokens_details.cached_tokens == 0
    assert await sdk.responses.retrieve(made.id) == made
    await sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(made.id)


async def test_the_streaming_helper_puts_the_response_together(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(model=MODEL, input="hi") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Hello there."


async def test_events_are_read_and_read_again_from_the_middle(sdk: openai.AsyncOpenAI) -> None:
    events = [event async for event in await sdk.responses.create(model=MODEL, input="hi", stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    again = await sdk.responses.retrieve(events[0].response.id, stream=True, starting_after=3)
    assert [event async for event in again] == events[4:]


async def test_a_failure_in_a_stream_is_told(sdk: openai.AsyncOpenAI, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], EngineStopped("the engine process ended")]
    events = [event async for event in await sdk.responses.create(model=MODEL, input="hi", stream=True)]
    failure, last = events[-2:]
    assert failure.type == "error"
    assert failure.message == "the engine process ended"
    assert last.type == "response.failed"
    assert last.response.error is not None


async def test_errors_arrive_as_their_classes(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        await sdk.responses.create(model=MODEL, input="hi", previous_response_id="resp_none")
    assert (bad.value.param, bad.value.code) == ("previous_response_id", "previous_response_not_found")


async def test_a_response_in_the_background_is_polled_followed_and_cancelled(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel
) -> None:
    ids = model.tokenizer.encode("Hello there.", add_special=False)
    engine.script = lambda request, index: [ids[:1], 0.2, ids[1:]]
    made = await sdk.responses.create(model=MODEL, input="hi", background=True)
    assert made.status == "queued"
    async for event in await sdk.responses.retrieve(made.id, stream=True):
        last = event
    assert last.type == "response.completed"
    assert (await sdk.responses.retrieve(made.id)).output_text == "Hello there."
    engine.script = lambda request, index: [ids[:1], 1000.0]
    stuck = await sdk.responses.create(model=MODEL, input="hi", background=True)
    assert (await sdk.responses.cancel(stuck.id)).status == "cancelled"
    while engine.streams:  # noqa: ASYNC110 - it lives in another thread
        await asyncio.sleep(0.01)


async def test_input_items_and_tokens_are_told(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.responses.create(model=MODEL, input=[{"role": "user", "content": "message 0"}])
    items = [item async for item in sdk.responses.input_items.list(made.id, limit=1)]
    assert [item.type for item in items] == ["message"]
    count = await sdk.responses.input_tokens.count(model=MODEL, input="message 0")
    assert made.usage is not None
    assert count.input_tokens == made.usage.input_tokens


async def test_conversations_are_walked_page_by_page(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.conversations.create(metadata={"a": "b"}, items=[{"role": "developer", "content": "Rules"}])
    for text in ("one", "two"):
        await sdk.responses.create(model=MODEL, input=text, conversation=made.id)
    items = [item async for item in sdk.conversations.items.list(made.id, order="asc", limit=2)]
    assert [getattr(item, "role", None) for item in items] == ["developer", "user", "assistant", "user", "assistant"]
    assert (await sdk.conversations.items.retrieve(str(items[0].id), conversation_id=made.id)).type == "message"
    await sdk.conversations.items.delete(str(items[0].id), conversation_id=made.id)
    assert (await sdk.conversations.update(made.id, metadata={"c": "d"})).metadata == {"c": "d"}
    assert (await sdk.conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.conversations.retrieve(made.id)


async def test_a_function_is_called_and_its_output_answered(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "Let me look. " + CALL)
    first = await sdk.responses.create(model=MODEL, input="Weather in Bern?", tools=[WEATHER])
    message, call = first.output
    assert message.type == "message"
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments), call.status) == ("get_weather", {"city": "Bern"}, "completed")
    engine.script = says(model, "Sunny.")
    second = await sdk.responses.create(
        model=MODEL,
        tools=[WEATHER],
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
    )
    assert second.output_text == "Sunny."
    prompt = model.tokenizer.decode(engine.last.prompt_ids, skip_special=False)
    assert "Bern" in prompt
    assert "sunny" in prompt


async def test_a_streamed_call_is_that_of_the_whole_answer(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, CALL + "\n" + CALL.replace("Bern", "Genf"))
    whole = await sdk.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
    async with sdk.responses.stream(model=MODEL, input="Weather?", tools=[WEATHER]) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    for number, (streamed, answered) in enumerate(zip(final.output, whole.output, strict=True)):
        assert streamed.type == answered.type == "function_call"
        assert streamed.arguments == answered.arguments
        deltas = [
            event.delta
            for event in events
            if event.type == "response.function_call_arguments.delta" and event.output_index == number
        ]
        assert "".join(deltas) == answered.arguments
    assert len(final.output) == 2
