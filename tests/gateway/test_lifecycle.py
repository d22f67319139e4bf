"""Clients that leave, engines that die, readers that stall, servers that drain: real sockets (cases of table I)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager

import httpx
import msgspec
import pytest

from engine.request import GenerateRequest
from engine.text.model import TextModel
from tests.fakes import Action, RunningServer, ScriptedEngine, repeats, running_server, says
from tests.gateway.wire import CHAT, TEXT, Body, chat, data_lines, error_of, joined, read_events, text

FOREVER = 600.0


def never(request: GenerateRequest, index: int) -> list[Action]:
    """One token, then nothing more."""
    return [[40], FOREVER]


def waits(request: GenerateRequest, index: int) -> list[Action]:
    """Not even a first token."""
    return [FOREVER]


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel) -> Iterator[RunningServer]:
    """A real server over `engine`."""
    with running_server(engine, model, heartbeat_s=0.05) as server:
        yield server


async def eventually(condition: Callable[[], object], patience_s: float = 60.0) -> None:
    """Waits for something another thread does."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


@contextmanager
def raw_request(server: RunningServer, body: Body, path: str = CHAT) -> Iterator[socket.socket]:
    """Sends a request and leaves the connection in the caller's hands."""
    data = msgspec.json.encode(body)
    host, port = server.url.removeprefix("http://").split(":")
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        yield connection


@pytest.mark.parametrize("script", [never, waits], ids=["decoding", "queued"])
@pytest.mark.parametrize(
    "body",
    [
        chat(max_tokens=2000, ignore_eos=True),
        chat(max_tokens=2000, stream=True),
        chat(max_tokens=2000, n=3),
        chat(max_tokens=2000, n=3, stream=True),
    ],
    ids=["whole", "stream", "whole_n", "stream_n"],
)
async def test_g_62_work_ends_when_its_client_leaves(
    server: RunningServer, engine: ScriptedEngine, script: Callable[..., list[Action]], body: Body
) -> None:
    engine.script = script
    with raw_request(server, body):
        await eventually(lambda: engine.streams)
    await eventually(lambda: not engine.streams)
    await eventually(lambda: server.num_active == 0)
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("streams", [True, False])
async def test_g_62_every_prompt_of_a_batch_is_ended(
    server: RunningServer, engine: ScriptedEngine, streams: bool
) -> None:
    engine.script = never
    with raw_request(server, text(prompt=["a", "b", "c"], stream=streams, max_tokens=2000), TEXT):
        await eventually(lambda: len(engine.streams) == 3)
    await eventually(lambda: not engine.streams)
    assert len(engine.aborted) == 3


async def test_g_63_leaving_at_the_last_chunk_harms_nobody(server: RunningServer, engine: ScriptedEngine) -> None:
    for pause_ms in range(60):
        with raw_request(server, chat(stream=True)) as connection:
            connection.recv(300)
            await asyncio.sleep(pause_ms % 6 / 1000)
    await eventually(lambda: not engine.streams and server.num_active == 0)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_g_65_gauges_fall_back_when_all_clients_leave(server: RunningServer, engine: ScriptedEngine) -> None:
    engine.script = never
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        connections = [raw_request(server, chat(stream=True, max_tokens=500)) for _ in range(50)]
        for connection in connections:
            connection.__enter__()
        await eventually(lambda: len(engine.streams) == 50)
        assert "wye_gateway_active_requests" in (busy := (await client.get("/metrics")).text)
        assert 'wye_gateway_active_requests{worker="0"} 50.0' in busy
        assert "wye_engine_running_sequences 50.0" in busy
        for connection in connections:
            connection.__exit__(None, None, None)
        await eventually(lambda: server.num_active == 0)
        idle = (await client.get("/metrics")).text
    assert 'wye_gateway_active_requests{worker="0"} 0.0' in idle
    assert "wye_engine_running_sequences 0.0" in idle
    assert 'wye_finished_total{reason="abort"} 50.0' in idle


async def test_g_68_a_stalled_reader_is_dropped_and_slows_nobody(model: TextModel, engine: ScriptedEngine) -> None:
    long = chat(stream=True, max_tokens=100_000, ignore_eos=True)
    engine = ScriptedEngine(model, repeats(40), max_model_len=200_000, num_pages=20_000)
    with running_server(engine, model, send_timeout_s=0.4) as server:
        with raw_request(server, long):
            await eventually(lambda: engine.requests)
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                for _ in range(5):
                    answer = await client.post(CHAT, json=chat(stream=True))
                    assert data_lines(answer.text)[-1] == "[DONE]"
            await eventually(lambda: server.num_active == 0)
        assert len(engine.requests) == 6


async def test_g_10_heartbeats_are_comments_ended_by_one_newline(
    server: RunningServer, engine: ScriptedEngine, model: TextModel
) -> None:
    ids = model.tokenizer.encode("slow", add_special=False)
    gates = [asyncio.Event(), asyncio.Event()]
    engine.script = lambda request, index: [gates[0], ids[:1], gates[1], ids[1:]]
    told = ""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        client.stream("POST", CHAT, json=chat(stream=True)) as answer,
    ):
        async for part in answer.aiter_text():
            told += part
            for number, gate in enumerate(gates):
                if told.count(": keep-alive\n") > number:  # the next token comes after a heartbeat
                    server.call(gate.set)
    lines = told.split("\n")
    assert lines.count(": keep-alive") >= 2
    assert all(lines[at + 1] != "" for at, line in enumerate(lines) if line == ": keep-alive")
    assert not any(line.startswith(("id:", "event:", "retry:")) or line == "data:" for line in lines)
    assert data_lines(told)[-1] == "[DONE]"


async def test_events_arrive_as_they_are_made(server: RunningServer, engine: ScriptedEngine, model: TextModel) -> None:
    ids = model.tokenizer.encode("ab", add_special=False)
    gates = [asyncio.Event() for _ in ids]
    engine.script = lambda request, index: [[ids[0]], gates[0], [ids[1]], gates[1]]
    parts = []
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
        client.stream("POST", CHAT, json=chat(stream=True)) as answer,
    ):
        async for chunk in read_events(answer):
            parts.append(chunk)
            if chunk["choices"][0]["delta"].get("content") and len(parts) <= 3:
                server.call(gates[len(parts) - 2].set)
    assert joined(parts) == "ab"


async def test_the_death_of_the_engine_ends_streams_with_an_error_event(
    server: RunningServer, engine: ScriptedEngine
) -> None:
    engine.script = never
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        streaming = asyncio.create_task(client.post(CHAT, json=chat(stream=True)))
        waiting = asyncio.create_task(client.post(CHAT, json=chat()))
        await eventually(lambda: len(engine.streams) == 2)
        server.call(engine.die)
        *_, failure, done = data_lines((await streaming).text)
        assert msgspec.json.decode(failure)["error"]["code"] == "engine_stopped"
        assert done == "[DONE]"
        error = error_of(await waiting, 503)
        assert error["type"] == "server_error"
        assert (await client.get("/health")).status_code == 503


async def test_a_drain_lets_streams_finish_and_refuses_new_work(
    server: RunningServer, engine: ScriptedEngine, model: TextModel
) -> None:
    gate = asyncio.Event()
    ids = model.tokenizer.encode("last words", add_special=False)
    engine.script = lambda request, index: [ids[:1], gate, ids[1:]]
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        running = asyncio.create_task(client.post(CHAT, json=chat(stream=True)))
        await eventually(lambda: engine.streams)
        server.begin_drain()
        await eventually(lambda: server.is_draining)
        refusal = await client.post(CHAT, json=chat())
        assert error_of(refusal, 503)["message"] == "The server is shutting down."
        assert int(refusal.headers["retry-after"]) >= 1
        error_of(await client.get("/ready"), 503)
        assert (await client.get("/health")).status_code == 200
        server.call(gate.set)
        answer = await running
        parts = [msgspec.json.decode(line) for line in data_lines(answer.text)[:-1]]
        assert joined(parts) == "last words"
    server.join()
    assert not server.is_running


async def test_a_drain_that_takes_too_long_ends_streams_with_an_error_event(
    engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = never
    with running_server(engine, model, drain_s=0.3) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            running = asyncio.create_task(client.post(CHAT, json=chat(stream=True)))
            await eventually(lambda: engine.streams)
            server.begin_drain()
            *_, failure, done = data_lines((await running).text)
            assert "error" in msgspec.json.decode(failure)
            assert done == "[DONE]"
        server.join()
        assert not server.is_running


async def test_an_idle_server_ends_at_once(engine: ScriptedEngine, model: TextModel) -> None:
    with running_server(engine, model, drain_s=600) as server:
        server.begin_drain()
        server.join()
        assert not server.is_running


async def test_a_large_body_is_refused_over_a_real_connection(engine: ScriptedEngine, model: TextModel) -> None:
    with running_server(engine, model, max_body_bytes=100_000) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            headers = {"content-type": "application/json"}
            error_of(await client.post(CHAT, content=b" " * 5_000_000, headers=headers), 413)

            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(100):
                    yield b" " * 50_000

            error_of(await client.post(CHAT, content=pieces(), headers=headers), 413)
            assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_a_client_that_leaves_while_sending_is_forgotten(server: RunningServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")
        await eventually(lambda: server.num_active == 1)
    await eventually(lambda: server.num_active == 0)


async def test_says_is_heard_over_a_real_connection(
    server: RunningServer, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, "naïve 🙂", per_event=3)
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        answer = await client.post(CHAT, json=chat())
    assert answer.json()["choices"][0]["message"]["content"] == "naïve 🙂"
