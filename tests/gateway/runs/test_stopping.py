"""Streams of events at a server that stops: each ends where its run is handed over, and nothing is missed elsewhere."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from gateway import worker as gateway_worker
from gateway.cli import run_client
from gateway.cli.api_client import RequestFailed
from gateway.cli.run_client import RunClient
from tests.fakes import RunningServer, ScriptedEngine, running_server, says
from tests.gateway.runs.workers import RUNS, Worker, begin, ended, events, get, kinds, main_of, parsed, until
from tests.gateway.test_worker import Fleet

RECEIVES = """
await lm.emit("on")
return [await lm.receive(), await lm.receive()]
"""
ANN = {"Authorization": "Bearer ann"}
GOES_ON = "The server is shutting down. The run goes on, and its events can be read."


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel, redis_url: str) -> Iterator[RunningServer]:
    """Would wait very long for a request in flight."""
    with running_server(engine, model, redis_url=redis_url, api_keys=("ann",), drain_s=600) as server:
        yield server


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to it."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=ANN) as client:
        yield client


@pytest.fixture
async def other(model: TextModel, redis_url: str) -> AsyncIterator[Worker]:
    """Another process with the same Redis and an engine of its own."""
    worker = Worker(ScriptedEngine(model, says(model, "Hello.")), model, redis_url)
    yield worker
    await worker.close()


async def is_on(client: httpx.AsyncClient, run_id: str) -> bool:
    """A run has given something out."""
    return bool((await get(client, f"/{run_id}"))["last_sequence_number"] >= 1)


async def read_on(worker: Worker, run_id: str, told: list[dict[str, Any]]) -> None:
    """Comes back elsewhere after what was told: the run goes on, and no event is missed or told twice."""
    numbered = [one for one in told if "sequence_number" in one]
    for number in (1, 2):
        await worker.ann.post(f"{RUNS}/{run_id}/input", json={"input": number})
    rest = await events(worker.ann, run_id, after=numbered[-1]["sequence_number"])
    assert kinds([*numbered, *rest]) == ["started", "text.delta", "completed"]
    assert rest[-1]["run"]["result"] == [1, 2]


def shutting_down(told: list[dict[str, Any]]) -> None:
    """Such events end with an error that says so and has no number."""
    assert told[-1]["error"]["code"] == "server_is_overloaded"
    assert told[-1]["error"]["message"] == GOES_ON
    assert "sequence_number" not in told[-1]


@pytest.mark.parametrize("by_request", [False, True], ids=["followed", "asked with stream"])
async def test_a_stream_ends_with_the_hand_over_and_goes_on_elsewhere(
    server: RunningServer, client: httpx.AsyncClient, other: Worker, caplog: pytest.LogCaptureFixture, by_request: bool
) -> None:
    if by_request:
        asking = {"method": "POST", "url": RUNS, "json": {"source": main_of(RECEIVES), "stream": True}}
    else:
        run = await begin(client, RECEIVES)
        asking = {"method": "GET", "url": f"{RUNS}/{run['id']}/events"}
    async with client.stream(**asking) as answer:  # type: ignore[arg-type]
        parts = answer.aiter_text()
        raw = ""
        while "run.text.delta" not in raw:
            raw += await anext(parts)
        server.begin_drain()
        raw += "".join([part async for part in parts])
    told = parsed(raw)
    shutting_down(told)
    await asyncio.to_thread(server.join)
    assert not server.is_running
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []
    (run,) = (await get(other.ann, ""))["data"]
    await read_on(other, run["id"], told)


async def test_a_run_of_another_server_is_followed_until_the_drain_begins(
    server: RunningServer, client: httpx.AsyncClient, other: Worker
) -> None:
    run = await begin(other.ann, RECEIVES)
    following = asyncio.create_task(events(client, run["id"]))
    await until(lambda: is_on(client, run["id"]))
    server.begin_drain()
    told = await following
    shutting_down(told)
    await asyncio.to_thread(server.join)
    assert (await get(other.ann, f"/{run['id']}"))["lives"] == 1
    await read_on(other, run["id"], told)


async def test_a_run_whose_request_is_there_is_followed_as_long_as_that(
    model: TextModel, redis_url: str, other: Worker
) -> None:
    victim = Worker(ScriptedEngine(model, says(model, "Hello.")), model, redis_url)
    source = main_of("await lm.emit('on')\nreturn await lm.receive()")
    body = {"messages": [{"role": "user", "content": "hi"}], "extension": {"source": source, "detached": True}}
    asking = asyncio.create_task(victim.ann.post("/v1/chat/completions", json=body))
    runs = victim.services.detached_runs
    await until(lambda: runs.num_running)
    (run_id,) = runs._makings
    following = asyncio.create_task(events(victim.ann, run_id))
    await until(lambda: is_on(other.ann, run_id))
    victim.services.lifecycle.begin_drain()
    runs.begin_drain()
    await other.ann.post(f"{RUNS}/{run_id}/input", json={"input": "more"})
    assert (await asking).json()["choices"][0]["message"]["content"] == "onmore"
    assert kinds(await following)[-1] == "completed"
    await victim.close()


async def test_runs_that_are_over_are_read_to_the_end_while_the_server_drains(
    model: TextModel, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.runs.telling.FLUSH_S", 0.0)
    victim = Worker(ScriptedEngine(model, says(model, "Hello.")), model, redis_url)
    run = await begin(victim.ann, "for n in range(300):\n    await lm.emit_event('n', n)\n    await lm.store.get('n')")
    await ended(victim.ann, run["id"])
    victim.services.lifecycle.begin_drain()
    found = await events(victim.ann, run["id"])
    assert [one["sequence_number"] for one in found] == list(range(302))
    await victim.close()


async def test_a_client_that_does_not_read_is_left_without_a_failure(
    server: RunningServer,
    client: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(gateway_worker, "DROP_S", 0.3)
    run = await begin(client, "for n in range(40):\n    await lm.emit_event('n', 'x' * 200_000)")
    done = await ended(client, run["id"])
    address = httpx.URL(server.url)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((address.host, address.port))
        path = f"{RUNS}/{done['id']}/events"
        deaf.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann\r\n\r\n".encode())
        assert deaf.recv(10)
        server.begin_drain()
        await asyncio.to_thread(server.join)
        assert not server.is_running
    assert "closing 1 connections whose clients have not read to the end" in caplog.text
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


class _Moving(RunClient):
    """Asks at one address after the other, as behind a name that moves to another server."""

    def __init__(self, urls: Iterator[str]) -> None:
        self._urls = urls
        super().__init__("", "ann")

    def address(self, path: str) -> str:
        return f"{next(self._urls)}/v1/runs{path}"


async def test_the_command_line_comes_back_after_an_interruption(
    model: TextModel, redis_url: str, server: RunningServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    run = await begin(client, RECEIVES)
    with running_server(
        ScriptedEngine(model, says(model, "Hello.")), model, redis_url=redis_url, api_keys=("ann",)
    ) as second:
        following = RunClient.events(_Moving(iter([server.url, second.url])), run["id"], -1)
        told = [await asyncio.to_thread(next, following) for _ in range(2)]
        server.begin_drain()
        rest = asyncio.create_task(asyncio.to_thread(list, following))
        await asyncio.to_thread(server.join)
        async with httpx.AsyncClient(base_url=second.url, timeout=60, headers=ANN) as there:
            for number in (1, 2):
                await there.post(f"{RUNS}/{run['id']}/input", json={"input": number})
            told += await rest
    assert kinds(told) == ["started", "text.delta", "completed"]


async def test_the_command_line_says_why_where_every_try_is_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def interrupted(_: RunClient, run_id: str, after: int) -> Iterator[dict[str, Any]]:
        tries.append((run_id, after))
        yield {"type": "error", "error": {"message": "Redis is away."}}

    monkeypatch.setattr("gateway.cli.run_client.time.sleep", lambda _: None)
    monkeypatch.setattr(RunClient, "_stream", interrupted)
    with pytest.raises(RequestFailed, match=r"Redis is away\."):
        list(RunClient("http://x", "").events("run_1", 7))
    assert tries == [("run_1", 7)] * run_client.MAX_TRIES


def test_sigterm_ends_the_stream_of_a_follower_in_order(
    tmp_path: Path, redis_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(tmp_path, redis_url=redis_url)
    try:
        fleet.engine.start()
        fleet.engine.wait_ready(60)
        fleet.wait("/ready", 200)
        run = httpx.post(fleet.url + RUNS, json={"source": main_of(RECEIVES)}, timeout=60).json()
        with httpx.stream("GET", f"{fleet.url}{RUNS}/{run['id']}/events", timeout=60) as answer:
            parts = answer.iter_text()
            raw = next(parts)
            for worker in fleet.workers:
                worker.send_signal(signal.SIGTERM)
            raw += "".join(parts)
        assert [worker.wait(60) for worker in fleet.workers] == [0, 0]
    finally:
        fleet.stop()
    shutting_down(parsed(raw))
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said
    assert "graceful shutdown exceeded" not in said
