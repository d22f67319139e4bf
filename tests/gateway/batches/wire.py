"""Uploads, inputs of batches and their results, as tests spell them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from engine.text.model import TextModel
from gateway.app import create_app
from gateway.services import Services
from gateway.state.store import PREFIX
from tests.fakes import ScriptedEngine, make_settings
from tests.gateway.wire import CHAT, Body, chat

FILES = "/v1/files"
BATCHES = "/v1/batches"
PATIENCE_S = 60.0
OVER = frozenset({"completed", "failed", "expired", "cancelled"})


class Worker:
    """One gateway process's app with its part of the batches, without the process."""

    def __init__(self, engine: ScriptedEngine, model: TextModel, **settings: object) -> None:
        self.app = create_app(make_settings(**settings), engine=engine, text=model)
        self.services: Services = self.app.state.services
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)

    def start(self) -> None:
        """Begins to work on batches."""
        self.services.runner.start()

    async def close(self) -> None:
        """Ends everything."""
        await self.client.aclose()
        await self.services.aclose()


class Clock:
    """Stands for the module `time`: a clock that tests move.

    Attributes:
        ahead_s: How far it is ahead of the machine's.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def time(self) -> float:
        """See `time.time`."""
        return time.time() + self.ahead_s


def lapse(redis_url: str, batch_id: str) -> None:
    """Ends the lease of a batch, as if whoever has it had been silent for too long."""
    with Redis.from_url(redis_url) as redis:
        redis.hset(f"{PREFIX}b:{batch_id}", "lease_until", 0)


def line(number: int, **fields: Any) -> Body:
    """A request of a batch; a field given here replaces the default, None leaves it out."""
    made = {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": CHAT,
        "body": chat(messages=[{"role": "user", "content": f"message {number}"}]),
        **fields,
    }
    return {name: value for name, value in made.items() if value is not None}


def jsonl(lines: Sequence[Body | str | bytes]) -> bytes:
    """Lines as a file; text and bytes stand as they are."""
    made = (item if isinstance(item, str | bytes) else json.dumps(item) for item in lines)
    return b"\n".join(item.encode() if isinstance(item, str) else item for item in made) + b"\n"


async def upload(client: httpx.AsyncClient, data: bytes, *, name: str = "in.jsonl", **fields: str) -> Body:
    """Uploads a file that must be accepted."""
    answer = await client.post(FILES, files={"file": (name, data)}, data={"purpose": "batch", **fields})
    assert answer.status_code == 200, answer.text
    made: Body = answer.json()
    return made


async def begin(client: httpx.AsyncClient, lines: Sequence[Body | str | bytes], **fields: Any) -> Body:
    """Creates a batch that must be accepted."""
    made = await upload(client, jsonl(lines))
    asked = {"input_file_id": made["id"], "endpoint": CHAT, "completion_window": "24h", **fields}
    answer = await client.post(BATCHES, json=asked)
    assert answer.status_code == 200, answer.text
    batch: Body = answer.json()
    return batch


async def get(client: httpx.AsyncClient, path: str) -> Body:
    """Reads something that must be there."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


async def ended(client: httpx.AsyncClient, batch_id: str) -> Body:
    """Polls, as clients do, until a batch is over."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        batch = await get(client, f"{BATCHES}/{batch_id}")
        if batch["status"] in OVER:
            return batch
        assert time.monotonic() < deadline_s, batch
        await asyncio.sleep(0.02)


async def results(client: httpx.AsyncClient, file_id: str | None) -> list[Body]:
    """Lines of a file that a batch wrote; none if it wrote none."""
    if file_id is None:
        return []
    answer = await client.get(f"{FILES}/{file_id}/content")
    assert answer.status_code == 200, answer.text
    found = [json.loads(text) for text in answer.text.splitlines()]
    assert all(item.keys() == {"id", "custom_id", "response", "error"} for item in found)
    return found


async def until(condition: Callable[[], Any]) -> None:
    """Waits for a condition."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def left_on_disk(directory: Path) -> list[str]:
    """Names of all files below a directory."""
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def ids(found: Sequence[Body]) -> list[str]:
    """What the client called the requests of some results."""
    return [item["custom_id"] for item in found]
