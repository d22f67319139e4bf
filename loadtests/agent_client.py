"""Agents as loops of a client over HTTP, and the keep-alive connection that they and everything else here use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from loadtests.agent_work import NUM_ROLES, TOOL, Task, run_code

COST_HEADER = "x-cost-kv-kib-seconds"


class CallFailed(Exception):
    """The server did not answer with success; the text says what it said."""


@dataclass(kw_only=True, slots=True)
class Spent:
    """What one run came to.

    Attributes:
        tokens: Generated, in order.
        kv_kib_s: KiB times seconds of KV; None where the server does not say.
        seconds: From begin to end.
    """

    tokens: list[int] = field(default_factory=list)
    kv_kib_s: float | None = None
    seconds: float = 0.0

    def add(self, answer: Mapping[str, Any], kv_kib_s: float | None) -> list[int]:
        """Counts one completion; returns its tokens."""
        new: list[int] = answer["choices"][0]["token_ids"]
        self.tokens += new
        if kv_kib_s is not None:
            self.kv_kib_s = (self.kv_kib_s or 0.0) + kv_kib_s
        return new


class Link:
    """One connection that is kept open; one exchange at a time.

    Args:
        url: Of the server, scheme and host.
        rtt_s: Waited before each exchange: a network between the two.
    """

    def __init__(self, url: str, rtt_s: float = 0.0) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._rtt_s = rtt_s
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> Link:
        self._streams = await asyncio.open_connection(self._host, self._port, limit=2**24)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._streams is not None
        self._streams[1].close()

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Sends JSON and reads the JSON that comes back, with the headers in lower case.

        Raises:
            CallFailed: The status is not 200.
        """
        if self._rtt_s:
            await asyncio.sleep(self._rtt_s)
        answer, headers = await self._exchange("POST", path, json.dumps(body).encode())
        return json.loads(answer), headers

    async def metric(self, name: str) -> float:
        """The value of a metric without labels, 0 if the server has none of that name.

        Raises:
            CallFailed: The status is not 200.
        """
        answer, _ = await self._exchange("GET", "/metrics", b"")
        lines = (line.partition(" ") for line in answer.decode().splitlines())
        return next((float(value) for key, _, value in lines if key == name), 0.0)

    async def _exchange(self, method: str, path: str, data: bytes) -> tuple[bytes, dict[str, str]]:
        assert self._streams is not None
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        answer = await reader.readexactly(int(headers["content-length"]))
        if status.split()[1] != "200":
            raise CallFailed(f"{path}: {status}: {answer[:2000].decode('utf-8', 'replace')}")
        return answer, headers


async def loop(task: Task, model: Link, tool: Link, fields: Mapping[str, Any]) -> Spent:
    """Does a task as a client: one request for each generation, the whole history in each.

    Args:
        task: What to do.
        model: To the server.
        tool: To the tool.
        fields: Of each request: the model's name, the salt of the cache.
    """
    spent = Spent()

    async def generate(history: list[int]) -> list[int]:
        body = {
            **fields,
            "prompt": history,
            "max_tokens": task.shape.tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer, headers = await model.post("/v1/completions", body)
        cost = headers.get(COST_HEADER)
        return spent.add(answer, None if cost is None else float(cost))

    if task.shape.workflow == "swarm":
        await _swarm(task, generate)
        return spent
    history = task.prompt
    for number, observation in enumerate(task.observations):
        history += await generate(history)
        if task.shape.workflow == "react":
            await tool.post(f"/{TOOL}", {"number": number})
        else:
            run_code(number)
        history += observation
    await generate(history)
    return spent


async def _swarm(task: Task, generate: Any) -> None:
    histories = [[*task.specs[role], *task.ask] for role in range(NUM_ROLES)]
    message: list[int] = []
    for number in range(task.shape.calls):
        history = histories[number % NUM_ROLES]
        history += message
        message = await generate(history)
        history += message
