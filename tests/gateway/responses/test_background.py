"""Responses in the background: on their own, followed, cancelled, by whichever worker, and never forgotten half-way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.errors import EngineStopped
from engine.text.model import TextModel
from gateway.app import create_app
from gateway.services import Services
from gateway.state.embedded import EmbeddedRedis, find_server
from tests.fakes import ScriptedEngine, make_settings, repeats, running_server
from tests.gateway.responses.wire import FIELDS, RESPONSES, ask, create, events_of, get, kinds, refuse, replay, text_of
from tests.gateway.wire import Body, error_of

PATIENCE_S = 60.0
ORDER = [
    "created",
    "queued",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]


class Worker:
    """One gateway process's app, without the process."""

    def __init__(self, engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
        app = create_app(make_settings(redis_url=redis_url), engine=engine, text=model)
        self.services: Services = app.state.services
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)

    async def close(self) -> None:
        await self.client.aclose()
        await self.services.aclose()


@pytest.fixture
async def workers(engine: ScriptedEngine, model: TextModel, redis_url: str) -> AsyncIterator[tuple[Worker, Worker]]:
    """Two workers of one server."""
    pair = Worker(engine, model, redis_url), Worker(engine, model, redis_url)
    yield pair
    for worker in pair:
        await worker.close()


async def until(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def ended(client: httpx.AsyncClient, response_id: str) -> Body:
    """Polls, as clients do, until a response is over."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        body = await get(client, f"responses/{response_id}")
        if body["status"] not in ("queued", "in_progress"):
            return body
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def waits(model: TextModel, gate: asyncio.Event) -> Any:
    """A script that says one word, waits, and says another."""
    ids = model.tokenizer.encode("Hello there.", add_special=False)
    return lambda request, index: [ids[:2], gate, ids[2:]]


async def test_it_is_queued_at_once_and_done_later(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel
) -> None:
    first, second = workers
    gate = asyncio.Event()
    engine.script = waits(model, gate)
    answer = await create(first.client, background=True, metadata={"a": "b"})
    assert (answer["status"], answer["background"], answer["output"]) == ("queued", True, [])
    await until(lambda: engine.streams)
    seen = await get(second.client, f"responses/{answer['id']}")
    assert seen["status"] in ("queued", "in_progress")
    assert seen.keys() == FIELDS
    gate.set()
    done = await ended(second.client, answer["id"])
    assert (done["status"], text_of(done), done["metadata"]) == ("completed", "Hello there.", {"a": "b"})
    await until(lambda: not first.services.runs.num_running)
    assert first.services.lifecycle.num_active == 0
    assert (await create(second.client, previous_response_id=answer["id"]))["status"] == "completed"


async def test_its_events_are_those_of_any_stream(workers: tuple[Worker, Worker]) -> None:
    first, second = workers
    answer = await first.client.post(RESPONSES, json=ask(background=True, stream=True))
    events = events_of(answer.text)
    assert kinds(events) == ORDER
    assert [event["response"]["status"] for event in events if "response" in event] == [
        "queued",
        "queued",
        "in_progress",
        "completed",
    ]
    response_id = events[0]["response"]["id"]
    assert await replay(second.client, response_id) == events
    assert await replay(second.client, response_id, starting_after=4) == events[5:]
    assert events[-1]["response"] == await get(second.client, f"responses/{response_id}")


async def test_a_stream_that_was_lost_goes_on_where_it_was(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    gate = asyncio.Event()
    engine.script = waits(model, gate)
    first, second = workers
    answer = await create(first.client, background=True)
    await until(lambda: engine.streams)
    follower = asyncio.ensure_future(replay(second.client, answer["id"], starting_after=1))
    await asyncio.sleep(0.1)
    assert not follower.done()
    gate.set()
    events = await follower
    assert events[0]["sequence_number"] == 2
    assert kinds(events) == ORDER[2:]
    assert text_of(events[-1]["response"]) == "Hello there."


async def test_a_client_that_leaves_does_not_end_it(engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
    ids = model.tokenizer.encode("Hello there.", add_special=False)
    engine.script = lambda request, index: [ids[:2], 0.3, ids[2:]]
    with running_server(engine, model, redis_url=redis_url) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            async with client.stream("POST", RESPONSES, json=ask(background=True, stream=True)) as answer:
                line = await anext(line async for line in answer.aiter_lines() if line.startswith("data"))
            response_id = events_of("event: response.created\n" + line)[0]["response"]["id"]
            assert text_of(await ended(client, response_id)) == "Hello there."
    assert engine.aborted == []


@pytest.mark.parametrize("other", [False, True])
async def test_it_is_cancelled_by_any_worker(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel, other: bool
) -> None:
    first, second = workers
    engine.script = waits(model, asyncio.Event())
    answer = await create(first.client, background=True)
    await until(lambda: engine.streams)
    follower = asyncio.ensure_future(replay(second.client, answer["id"]))
    path = f"{RESPONSES}/{answer['id']}/cancel"
    cancelled = (await workers[other].client.post(path)).json()
    assert (cancelled["id"], cancelled["status"]) == (answer["id"], "cancelled")
    assert engine.streams == {}
    assert len(engine.aborted) == 1
    events = await follower
    assert kinds(events)[-1] == "incomplete"
    assert events[-1]["response"] == cancelled == await get(first.client, f"responses/{answer['id']}")
    again = await second.client.post(path)
    assert (again.status_code, again.json()) == (200, cancelled)
    await until(lambda: not first.services.runs.num_running)


async def test_what_is_over_stays_as_it_is_when_cancelled(workers: tuple[Worker, Worker]) -> None:
    client = workers[0].client
    answer = await create(client, background=True)
    done = await ended(client, answer["id"])
    assert (await client.post(f"{RESPONSES}/{answer['id']}/cancel")).json() == done
    assert done["status"] == "completed"


@pytest.mark.parametrize("other", [False, True])
async def test_deleting_it_ends_it(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel, other: bool
) -> None:
    engine.script = waits(model, asyncio.Event())
    answer = await create(workers[0].client, background=True)
    await until(lambda: engine.streams)
    assert (await workers[other].client.delete(f"{RESPONSES}/{answer['id']}")).status_code == 200
    await until(lambda: not engine.streams)
    await until(lambda: not workers[0].services.runs.num_running)
    error_of(await workers[0].client.get(f"{RESPONSES}/{answer['id']}"), 404)


async def test_a_failure_is_written_down(workers: tuple[Worker, Worker], engine: ScriptedEngine) -> None:
    engine.script = lambda request, index: [[40], EngineStopped("the engine process ended")]
    answer = await create(workers[0].client, background=True)
    failed = await ended(workers[1].client, answer["id"])
    assert failed["status"] == "failed"
    assert failed["error"]["message"] == "the engine process ended"
    assert kinds(await replay(workers[1].client, answer["id"]))[-2:] == ["error", "failed"]


async def test_one_that_nobody_works_on_is_called_failed(workers: tuple[Worker, Worker], redis_url: str) -> None:
    client, store = workers[0].client, workers[0].services.store
    answer = await create(client)
    lost = {**answer, "status": "in_progress", "background": True, "output": []}
    await store.put("resp_lost", {"owner": "", "kind": "response", "status": "in_progress", "body": lost})
    body = await get(client, "responses/resp_lost")
    assert body["status"] == "failed"
    assert "ended before it was done" in body["error"]["message"]
    (event,) = await replay(client, "resp_lost")
    assert (event["type"], event["response"]) == ("response.failed", body)
    await refuse(client, param="input", previous_response_id="resp_lost", input=None)


async def test_nothing_goes_on_from_one_that_is_not_over(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = waits(model, asyncio.Event())
    answer = await create(workers[0].client, background=True)
    error = await refuse(workers[1].client, param="previous_response_id", previous_response_id=answer["id"])
    assert "has not ended" in error["message"]


async def test_a_stop_of_the_worker_cancels_what_still_runs(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel
) -> None:
    first, second = workers
    engine.script = waits(model, asyncio.Event())
    answer = await create(first.client, background=True)
    await until(lambda: engine.streams)
    await first.services.runs.aclose()
    assert (await get(second.client, f"responses/{answer['id']}"))["status"] == "cancelled"
    assert engine.streams == {}


async def test_a_drain_waits_for_it_and_tells_the_truth_when_it_takes_too_long(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    engine.script = lambda request, index: [[40], 1000.0]
    reader = Worker(engine, model, redis_url)
    with running_server(engine, model, redis_url=redis_url, drain_s=0.2) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            answer = await create(client, background=True)
            await until(lambda: server.num_active == 1)  # the request that started it may still be on its way out
            server.begin_drain()
            await asyncio.to_thread(server.join)
            assert not server.is_running
    body = await get(reader.client, f"responses/{answer['id']}")
    assert body["status"] == "failed"
    await reader.close()


async def test_a_worker_that_drains_ends_streams_of_what_another_makes(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, model: TextModel
) -> None:
    first, second = workers
    gate = asyncio.Event()
    engine.script = waits(model, gate)
    answer = await create(first.client, background=True)
    here, there = (
        asyncio.ensure_future(one.client.get(f"{RESPONSES}/{answer['id']}", params={"stream": True})) for one in workers
    )
    await until(lambda: engine.streams)
    for worker in workers:
        worker.services.lifecycle.begin_drain()
    cut = [json.loads(line[6:]) for line in (await there).text.splitlines() if line.startswith("data: ")]
    assert (cut[-1]["type"], cut[-1]["code"]) == ("error", "server_is_overloaded")
    assert cut[-1]["sequence_number"] == cut[-2]["sequence_number"]
    gate.set()
    whole = events_of((await here).text)
    assert kinds(whole)[-1] == "completed"
    rest = await replay(second.client, answer["id"], starting_after=cut[-1]["sequence_number"])
    assert [*cut[:-1], *rest] == whole


async def test_it_outlives_a_restart_of_the_store(engine: ScriptedEngine, model: TextModel, tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path, find_server())
    redis.start()
    gate = asyncio.Event()
    engine.script = waits(model, gate)
    worker = Worker(engine, model, redis.url)
    answer = await create(worker.client, background=True)
    await until(lambda: engine.streams)
    redis.stop()
    gate.set()
    await until(lambda: not engine.streams)
    redis.start()
    done = await ended(worker.client, answer["id"])
    assert text_of(done) == "Hello there."
    assert text_of((await replay(worker.client, answer["id"]))[-1]["response"]) == "Hello there."
    await worker.close()
    redis.stop()


async def test_input_that_is_too_large_to_keep_is_refused(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    app = create_app(make_settings(redis_url=redis_url, max_stored_bytes=1024), engine=engine, text=model)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        await refuse(client, param="input", background=True)
    assert engine.streams == {}


async def test_many_at_once_all_end(workers: tuple[Worker, Worker], engine: ScriptedEngine) -> None:
    engine.script = repeats(40)
    made = await asyncio.gather(
        *(create(workers[number % 2].client, background=True, max_output_tokens=20) for number in range(12))
    )
    done = await asyncio.gather(*(ended(workers[0].client, one["id"]) for one in made))
    assert {(one["status"], one["usage"]["output_tokens"]) for one in done} == {("incomplete", 20)}
