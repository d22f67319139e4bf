"""Detached runs whose gateway processes and engine are killed: they go on, and come to what they would have come to."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from loadtests.server import RunningServer, running_server
from tests.e2e import gauges
from tests.e2e.conftest import connect
from tests.e2e.test_kills import processes
from tests.extensions.tools.service import Service, served
from tests.gateway.wire import Body

NUM_PARTS = 24
SOURCE = f"""
import asyncio
async def main(request, lm):
    ctx = await lm.context("Once upon a time")
    texts, unknown = [], []
    for part in range({NUM_PARTS}):
        said = await ctx.generate(
            max_tokens=12, min_tokens=12, temperature=1.0, seed=part, presence_penalty=0.5, emit=True
        )
        texts.append(said.text)
        try:
            await lm.tool("pay", order=request.args["name"], part=part)
        except RuntimeError as error:
            assert str(error).startswith("tool_outcome_unknown")
            unknown.append(part)
        await lm.emit_event("part", part)
        if part in request.args["stops"]:
            await lm.receive()
        await lm.sleep(0.03)
    return {{"texts": texts, "unknown": unknown}}
"""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Whom orders are paid to, each once."""
    one = Service()
    async with served(one.app()) as url:
        one.url = url
        yield one


@pytest.fixture
def mortal(tiny_model: Path, start_options: list[str], tmp_path: Path, service: Service) -> Iterator[RunningServer]:
    """A server whose processes may be killed."""
    properties = {"order": {"type": "string"}, "part": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties}
    pay = {"name": "pay", "kind": "http", "effect": "once", "parameters": parameters}
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps({"tools": [{**pay, "http": {"url": f"{service.url}/echo"}}]}))
    args = [*start_options, "--workers", "2", "--kv-pages", "640"]
    environment = {
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path),
        "WYE_TOOLS_FILE": str(tools),
        "WYE_TOOL_NETWORKS": "127.0.0.0/8",
    }
    with running_server(str(tiny_model), args=args, environment=environment, log_path=tmp_path / "log") as running:
        yield running


async def start(client: httpx.AsyncClient, name: str, stops: Sequence[int] = ()) -> str:
    """A run that pays an order of this name, and waits for input after some of its parts."""
    answer = await client.post("/v1/runs", json={"source": SOURCE, "args": {"name": name, "stops": stops}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def events(server: RunningServer, run_id: str) -> AsyncIterator[Body]:
    """All events of a run, by whoever serves them: a reader that is cut off comes back."""
    last = -1
    while True:
        with contextlib.suppress(httpx.TransportError):
            async with (
                connect(server) as client,
                client.stream("GET", f"/v1/runs/{run_id}/events", params={"after": last}) as stream,
            ):
                async for line in stream.aiter_lines():
                    event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                    if "sequence_number" in event:
                        last = event["sequence_number"]
                        yield event
                        if "run" in event:
                            return
        await asyncio.sleep(0.2)


async def go_on(server: RunningServer, run_id: str) -> None:
    """Gives a run the input that it waits for, as soon as anybody takes it."""

    async def is_taken() -> bool:
        with contextlib.suppress(httpx.TransportError):
            async with connect(server) as client:
                answer = await client.post(f"/v1/runs/{run_id}/input", json={"input": "on"})
                return answer.status_code == 200
        return False

    await gauges.until(is_taken)


async def test_a_run_outlives_both_workers_and_the_engine(mortal: RunningServer, service: Service) -> None:
    async with connect(mortal) as client:
        whole = [event async for event in events(mortal, await start(client, "whole"))]
        # However late the test hears of a part, the run has not ended by then.
        run_id = await start(client, "killed", stops=(10, 20))
    told = []
    async for event in events(mortal, run_id):
        told.append(event)
        part = event.get("event", {}).get("data")
        if part == 3:
            for worker in processes(mortal, "gateway.worker"):
                worker.kill()
            await go_on(mortal, run_id)
        if part == 12:
            (engine,) = processes(mortal, "engine.child")
            engine.kill()
            await go_on(mortal, run_id)
    done, expected = told[-1]["run"], whole[-1]["run"]
    assert done["status"] == "completed", done["error"]
    assert done["lives"] == 3
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert [one["event"]["data"] for one in told if "event" in one] == list(range(NUM_PARTS))
    assert "".join(one.get("delta", "") for one in told) == done["content"] == expected["content"]
    assert done["result"]["texts"] == expected["result"]["texts"]
    paid = [call["part"] for _, _, _, call in service.calls if call["order"] == "killed"]
    assert len(paid) == len(set(paid))
    # What was under way when a process was killed has happened or not, and the script was told that nobody knows.
    unknown = done["result"]["unknown"]
    assert set(range(NUM_PARTS)) - set(unknown) <= set(paid)
    assert len(unknown) <= 2
    assert expected["result"]["unknown"] == []
    assert done["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"] == 12 * NUM_PARTS
    assert done["usage"]["prompt_tokens"] > expected["usage"]["prompt_tokens"]
