"""Processes that are killed or stopped while requests run: what clients see, and that the server recovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from loadtests.server import RunningServer, running_server
from tests.e2e import gauges
from tests.e2e.conftest import connect
from tests.gateway.wire import CHAT, TEXT, chat, data_lines, error_of, read_events, text, whole

PATIENCE_S = 60.0


@pytest.fixture
def mortal(tiny_model: Path, start_options: list[str], tmp_path: Path) -> Iterator[RunningServer]:
    """A server whose processes may be killed, with room for all that runs here."""
    args = [*start_options, "--workers", "2", "--kv-pages", "640"]
    environment = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    with running_server(str(tiny_model), args=args, environment=environment, log_path=tmp_path / "log") as running:
        yield running


def processes(server: RunningServer, program: str) -> list[psutil.Process]:
    """Children of the supervisor that run a program."""
    found = []
    for child in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # killed, and not yet buried or just now
            if program in child.cmdline():
                found.append(child)
    return found


async def answers(client: httpx.AsyncClient, path: str, status: int) -> bool:
    """Whether a path has this status."""
    return (await client.get(path)).status_code == status


async def test_a_killed_engine_is_told_to_everybody_and_replaced(mortal: RunningServer) -> None:
    endless = text(max_tokens=2000, ignore_eos=True)
    async with connect(mortal) as client:
        (engine,) = processes(mortal, "engine.child")
        async with client.stream("POST", TEXT, json={**endless, "stream": True}) as streamed:
            waiting = asyncio.create_task(client.post(TEXT, json={**endless, "n": 4}))
            events = read_events(streamed)
            await anext(events)
            await gauges.wait_for_running(client, 5)
            engine.kill()
            last = [event async for event in events][-1]
        assert last["error"]["code"] == "engine_stopped"
        refused = await waiting
        assert error_of(refused, 503)["code"] == "engine_stopped"
        assert int(refused.headers["retry-after"]) >= 1
        assert await answers(client, "/ready", 503)
        late = await client.post(CHAT, json=chat(stream=True))
        assert error_of(late, 503)["type"] == "server_error"
        await gauges.until(lambda: answers(client, "/ready", 200))
        await whole(client, chat())
        await gauges.wait_for_quiet(client)


async def test_a_killed_worker_takes_only_its_own_streams_and_no_page(mortal: RunningServer) -> None:
    body = text(max_tokens=800, ignore_eos=True, stream=True)  # the pool has room for twelve
    begun = asyncio.Event()

    async def read(client: httpx.AsyncClient) -> None:
        with contextlib.suppress(httpx.TransportError):
            async with client.stream("POST", TEXT, json=body) as streamed:
                reason = None
                async for event in read_events(streamed):
                    begun.set()
                    reason = event["choices"][0]["finish_reason"]
            assert reason == "length"

    async with connect(mortal) as client:
        tasks = [asyncio.create_task(read(client)) for _ in range(12)]
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        victim, survivor = processes(mortal, "gateway.worker")
        victim.kill()
        await asyncio.gather(*tasks)
        await gauges.until(lambda: asyncio.to_thread(lambda: len(processes(mortal, "gateway.worker")) == 2))
        assert survivor.is_running()
    async with connect(mortal) as client:
        await whole(client, chat())
        await gauges.wait_for_quiet(client)


async def test_a_stopped_worker_holds_up_no_other_and_goes_on_afterwards(mortal: RunningServer) -> None:
    async with connect(mortal) as client:
        body = text(max_tokens=300, ignore_eos=True, stream=True)
        tasks = [asyncio.create_task(client.post(TEXT, json=body)) for _ in range(8)]
        stopped = processes(mortal, "gateway.worker")[0]
        stopped.suspend()
        try:
            async with connect(mortal) as other, asyncio.timeout(PATIENCE_S):
                await whole(other, chat(max_tokens=2))
        finally:
            stopped.resume()
        for answer in await asyncio.gather(*tasks):
            assert data_lines(answer.text)[-1] == "[DONE]"
        await gauges.wait_for_quiet(client)


async def test_children_of_a_killed_supervisor_end_after_telling_their_clients(mortal: RunningServer) -> None:
    children: list[psutil.Process] = []

    def all_have_begun() -> bool:
        children[:] = psutil.Process(mortal.pid).children(recursive=True)
        return len(children) == 5

    # An engine, what tries grammars for it, two workers, a private Redis.
    await gauges.until(lambda: asyncio.to_thread(all_have_begun))
    async with connect(mortal) as client:
        body = text(max_tokens=2000, ignore_eos=True, stream=True)
        async with client.stream("POST", TEXT, json=body) as streamed:
            events = read_events(streamed)
            await anext(events)
            os.kill(mortal.pid, signal.SIGKILL)
            last = [event async for event in events][-1]
        assert "error" in last
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []


async def test_whoever_asks_a_ready_server_is_served_whichever_worker_answers(mortal: RunningServer) -> None:
    async def is_ready(expected: bool) -> bool:
        # A new connection each time, so that any of the workers may take it.
        async with connect(mortal) as client:
            return await answers(client, "/ready", 200) is expected

    (engine,) = processes(mortal, "engine.child")
    engine.kill()
    await gauges.until(lambda: is_ready(False))
    await gauges.until(lambda: is_ready(True))
    for _ in range(8):
        async with connect(mortal) as client:
            await whole(client, text(max_tokens=1), TEXT)


async def test_a_detached_run_of_a_killed_worker_goes_on_in_another_and_keeps_its_events(
    mortal: RunningServer,
) -> None:
    source = """
async def main(request, lm):
    ctx = await lm.context("Hello")
    await ctx.prefill()
    await lm.emit("begun")
    await lm.sleep(200)
"""

    async def events(client: httpx.AsyncClient) -> list[str]:
        answer = await client.get(f"{path}/events")
        return [json.loads(line[6:])["type"] for line in answer.text.splitlines() if line.startswith("data: ")]

    async def is_running(life: int) -> bool:
        # A new connection each time: the worker that answered before may be the one that is gone.
        async with connect(mortal) as client:
            with contextlib.suppress(httpx.TransportError):
                run = (await client.get(path)).json()
                told = run["status"], run["lives"], run["last_sequence_number"] >= 1
                return bool(told == ("in_progress", life, True))
        return False

    async with connect(mortal) as client:
        path = f"/v1/runs/{(await client.post('/v1/runs', json={'source': source})).json()['id']}"
        await gauges.until(lambda: is_running(1))
        busy = await busy_workers(client)
    (victim,) = [one for one in processes(mortal, "gateway.worker") if index_of(one) in busy]
    victim.kill()
    await gauges.until(lambda: is_running(2))
    async with connect(mortal) as client:
        assert (await client.post(f"{path}/cancel")).is_success
        assert await events(client) == ["run.started", "run.text.delta", "run.cancelled"]
        await gauges.wait_for_quiet(client)


async def busy_workers(client: httpx.AsyncClient) -> set[int]:
    """Indices of workers with something in flight."""
    answer = await client.get("/metrics")
    found = re.findall(r'^wye_gateway_active_requests{worker="(\d+)"} ([0-9.]+)$', answer.text, re.MULTILINE)
    return {int(worker) for worker, count in found if float(count) >= 1}


def index_of(process: psutil.Process) -> int:
    """Which of the workers a process is."""
    index: int = json.loads(process.environ()["WYE_WORKER"])["index"]
    return index
