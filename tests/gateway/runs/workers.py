"""Gateway processes without the process, and what tests ask of their runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
from redis import Redis

from engine.text.model import TextModel
from gateway.app import create_app
from gateway.services import Services
from gateway.state.store import PREFIX
from tests.fakes import ScriptedEngine, make_settings
from tests.gateway.wire import Body

RUNS = "/v1/runs"
PATIENCE_S = 60.0


class Worker:
    """One worker's app; `ann` and `bob` are clients with keys of their own."""

    def __init__(self, engine: ScriptedEngine, model: TextModel, redis_url: str, **settings: object) -> None:
        fields = {"redis_url": redis_url, "api_keys": ("ann", "bob"), "heartbeat_s": 0, **settings}
        app = create_app(make_settings(**fields), engine=engine, text=model)
        self.services: Services = app.state.services
        self._app = app
        self._redis_url = redis_url
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.ann, self.bob = self._client("ann"), self._client("bob")

    def _client(self, key: str) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=self._transport, base_url="http://test", timeout=60, headers=headers)

    @property
    def described(self) -> Body:
        """The description of its API."""
        description: Body = self._app.openapi()
        return description

    async def close(self) -> None:
        """Ends it as a server ends."""
        await self.ann.aclose()
        await self.bob.aclose()
        await self.services.aclose()

    async def vanish(self) -> None:
        """Ends its work as SIGKILL does: the engine lets go, and Redis hears nothing until its leases are over."""
        runs = self.services.detached_runs
        lost = list(runs._makings)
        for making in list(runs._makings.values()):
            await making.end("lost")
        await until(lambda: not runs.num_running)
        await self.close()
        for run_id in lost:
            lapse(self._redis_url, run_id)


def lapse(redis_url: str, run_id: str) -> None:
    """Ends the lease of a run, as if its worker had been silent for too long."""
    with Redis.from_url(redis_url) as redis:
        redis.zadd(f"{PREFIX}plx", {run_id: 0}, xx=True)


def main_of(body: str) -> str:
    """A program whose `main` has these lines."""
    lines = body.strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "import asyncio\nasync def main(request, lm):\n" + "\n".join("    " + line[indent:] for line in lines) + "\n"


async def begin(client: httpx.AsyncClient, source: str, **fields: Any) -> Body:
    """Starts a run of a `main` of these lines."""
    answer = await client.post(RUNS, json={"source": main_of(source), **fields})
    assert answer.status_code == 200, answer.text
    run: Body = answer.json()
    return run


async def get(client: httpx.AsyncClient, path: str, **params: Any) -> Body:
    """What a path answers."""
    answer = await client.get(f"{RUNS}{path}", params=params)
    assert answer.status_code == 200, answer.text
    body: Body = answer.json()
    return body


async def ended(client: httpx.AsyncClient, run_id: str) -> Body:
    """Polls until a run is over."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        run = await get(client, f"/{run_id}")
        if run["status"] != "in_progress":
            return run
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.03)


async def events(
    client: httpx.AsyncClient, run_id: str, *, headers: Mapping[str, str] | None = None, **params: Any
) -> list[Body]:
    """All events of a run, up to its last one."""
    answer = await client.get(f"{RUNS}/{run_id}/events", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    return parsed(answer.text)


def parsed(stream: str) -> list[Body]:
    """Events of a stream; each must say its type and its number twice."""
    found = []
    for block in stream.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if not lines:
            continue
        one = json.loads(lines["data"])
        assert lines["event"] == one["type"]
        assert lines.get("id") == (str(one["sequence_number"]) if "sequence_number" in one else None)
        found.append(one)
    return found


def kinds(found: list[Body]) -> list[str]:
    """Types of events."""
    return [one["type"].removeprefix("run.") for one in found]


async def until(condition: Callable[[], Any]) -> None:
    """Waits for something to become true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (await found if isinstance(found := condition(), Awaitable) else found):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def problem(answer: httpx.Response, status: int) -> Body:
    """The error of an answer; those of programs say more than others."""
    assert answer.status_code == status, answer.text
    error: Body = answer.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    return error
