"""Streams of /v1/responses: the order of events, the end, and what a replay shows."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, repeats, running_server, says
from tests.gateway.responses.wire import RESPONSES, ask, create, events_of, get, kinds, replay, stream, text_of
from tests.gateway.wire import Body, error_of

ORDER = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]


def without_ids(response: Body) -> Body:
    """What two responses to the same request have in common."""
    output = [{**item, "id": None} for item in response["output"]]
    return {**response, "id": None, "created_at": None, "completed_at": None, "output": output}


async def test_g_69_events_come_in_order_with_rising_numbers(client: httpx.AsyncClient) -> None:
    events = await stream(client)
    assert kinds(events) == ORDER
    added, part, *deltas = events[2:-4]
    done, part_done, item_done, completed = events[-4:]
    item_id = added["item"]["id"]
    assert (added["output_index"], added["item"]["status"], added["item"]["content"]) == (0, "in_progress", [])
    assert part["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    for event in (part, *deltas, done, part_done):
        assert (event["item_id"], event["output_index"], event["content_index"]) == (item_id, 0, 0)
    assert all(delta["logprobs"] == [] for delta in deltas)
    assert "".join(delta["delta"] for delta in deltas) == done["text"] == part_done["part"]["text"] == "Hello there."
    assert item_done["item"]["status"] == "completed"
    assert completed["response"]["output"] == [item_done["item"]]


async def test_g_70_every_lifecycle_event_has_the_whole_object(client: httpx.AsyncClient) -> None:
    events = await stream(client)
    shown = [event["response"] for event in events if "response" in event]
    assert [(one["status"], len(one["output"])) for one in shown] == [
        ("in_progress", 0),
        ("in_progress", 0),
        ("completed", 1),
    ]
    assert shown[-1]["usage"]["output_tokens"] > 0


async def test_a_stream_ends_with_the_object_that_is_answered_without_one(client: httpx.AsyncClient) -> None:
    fields = {"top_logprobs": 1, "metadata": {"a": "b"}}
    streamed = (await stream(client, **fields))[-1]["response"]
    assert without_ids(streamed) == without_ids(await create(client, **fields))


async def test_logprobs_come_with_their_text(client: httpx.AsyncClient) -> None:
    events = await stream(client, top_logprobs=1)
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    for delta in deltas:
        assert b"".join(bytes(entry["bytes"]) for entry in delta["logprobs"]).decode() == delta["delta"]
    entries = [entry for delta in deltas for entry in delta["logprobs"]]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == entries


async def test_a_cut_stream_ends_incomplete(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    events = await stream(client, max_output_tokens=3)
    assert kinds(events) == [*ORDER[:-1], "incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_g_13_a_failure_is_told_twice_and_kept(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], [41], EngineStopped("the engine process ended")]
    events = await stream(client)
    assert kinds(events) == [*ORDER[:-1], "error", "failed"]
    assert events[-2]["code"] == "engine_stopped"
    assert events[-2]["message"] == "the engine process ended"
    response = events[-1]["response"]
    assert response["error"] == {"code": "server_error", "message": "the engine process ended"}
    assert response["output"][0]["status"] == "incomplete"
    assert await get(client, f"responses/{response['id']}") == response


async def test_what_is_wrong_is_a_400_although_a_stream_was_asked_for(client: httpx.AsyncClient) -> None:
    error_of(await client.post(RESPONSES, json=ask(stream=True, temperature=9)), 400)
    error_of(await client.post(RESPONSES, json=ask(stream=True, input="long " * 5000)), 400)


async def test_a_response_can_be_referred_to_as_soon_as_its_end_is_told(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    with running_server(engine, model, redis_url=redis_url) as server:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
            client.stream("POST", RESPONSES, json=ask(stream=True)) as answer,
        ):
            async for line in answer.aiter_lines():
                if '"response.completed"' in line and line.startswith("data: "):
                    response_id = events_of("event: response.completed\n" + line)[0]["response"]["id"]
                    assert text_of(await get(client, f"responses/{response_id}")) == "Hello there."
                    return
    pytest.fail("no end was told")


async def test_a_replay_shows_the_events_that_were_sent(client: httpx.AsyncClient) -> None:
    events = await stream(client)
    response_id = events[0]["response"]["id"]
    assert await replay(client, response_id) == events
    for after in (0, 5, len(events) - 2):
        assert await replay(client, response_id, starting_after=after) == events[after + 1 :]
    assert await replay(client, response_id, starting_after=len(events) + 5) == []


async def test_a_response_that_was_not_streamed_can_be_read_as_a_stream(client: httpx.AsyncClient) -> None:
    answer = await create(client)
    events = await replay(client, answer["id"])
    assert kinds(events) == ORDER
    assert events[-1]["response"] == answer


async def test_numbers_without_a_stream_make_no_sense(client: httpx.AsyncClient) -> None:
    answer = await create(client)
    for query in ("starting_after=1", "stream=true&starting_after=-1", "stream=perhaps"):
        error_of(await client.get(f"{RESPONSES}/{answer['id']}?{query}"), 400)


async def test_a_client_that_leaves_a_stream_ends_the_work(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    ids = model.tokenizer.encode("Hi", add_special=False)
    engine.script = lambda request, index: [ids, asyncio.Event()]
    with running_server(engine, model, redis_url=redis_url) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            async with client.stream("POST", RESPONSES, json=ask(stream=True)) as answer:
                lines = answer.aiter_lines()
                line = await anext(lines)
                while "output_text.delta" not in line:
                    line = await anext(lines)
            while engine.streams or server.num_active:  # noqa: ASYNC110 - polled: it lives in another thread
                await asyncio.sleep(0.01)
    assert len(engine.aborted) == 1


async def test_a_keep_alive_is_a_comment_between_events(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    ids = model.tokenizer.encode("slow", add_special=False)
    gate = asyncio.Event()
    engine.script = lambda request, index: [ids[:1], gate, ids[1:]]
    told = ""
    with running_server(engine, model, redis_url=redis_url, heartbeat_s=0.02) as server:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=60) as client,
            client.stream("POST", RESPONSES, json=ask(stream=True)) as answer,
        ):
            async for part in answer.aiter_text():
                told += part
                if ": keep-alive\n" in told:
                    server.call(gate.set)
    assert "id:" not in [line[:3] for line in told.splitlines()]
    assert text_of(events_of(told)[-1]["response"]) == "slow"


async def test_words_are_not_split_by_the_steps_they_come_in(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "Grüße, 世界 🌍!", per_event=1)
    events = await stream(client)
    assert text_of(events[-1]["response"]) == "Grüße, 世界 🌍!"
    assert "".join(event["delta"] for event in events if "delta" in event) == "Grüße, 世界 🌍!"
