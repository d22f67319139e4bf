"""Reads /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import httpx

PATIENCE_S = 60.0
BUSY = (
    "wye_gateway_active_requests",
    "wye_engine_running_sequences",
    "wye_engine_waiting_sequences",
    "wye_kv_used_pages",
)
"""All 0 when nothing runs."""


async def read(client: httpx.AsyncClient, *names: str) -> dict[str, float]:
    """Metrics by name, summed over their labels."""
    answer = await client.get("/metrics")
    samples = [line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: sum(float(value) for key, value in samples if key.split("{")[0] == name) for name in names}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for a condition; fails if it does not come true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)


async def wait_for_quiet(client: httpx.AsyncClient) -> None:
    """Returns when nothing runs, nothing waits and no page is used; fails if that does not happen."""

    async def is_quiet() -> bool:
        return not any((await read(client, *BUSY)).values())

    await until(is_quiet)


async def wait_for_running(client: httpx.AsyncClient, count: int) -> None:
    """Returns when so many sequences run."""
    name = "wye_engine_running_sequences"

    async def are_running() -> bool:
        return (await read(client, name))[name] >= count

    await until(are_running)
