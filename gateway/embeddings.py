"""The embeddings of one HTTP request: a few at a time in the engine, so that they crowd nobody out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from extensions.embedding import Embedding
from extensions.runtime import Runtime
from gateway.telemetry import Metrics

Take = Callable[[int, Embedding], None]
"""Given a prompt's place and its embedding."""

MAX_IN_FLIGHT = 64
"""Most prompts of one request that the engine has at a time."""


async def embed_all(
    runtime: Runtime,
    prompts: Sequence[Sequence[int]],
    take: Take,
    *,
    salt: str,
    priority: int,
    metrics: Metrics,
) -> None:
    """Embeds every prompt, in no order; the first failure ends all.

    Args:
        runtime: The door to the model.
        prompts: Token ids.
        take: Called as soon as an embedding is there.
        salt: Prefix pages are shared only among requests of the same salt.
        priority: Lower enters sooner.
        metrics: Told what was done.

    Raises:
        InvalidRequest: A prompt can never be served.
        QueueFull: Too many requests wait already.
        EngineStopped: No engine is there, or it went away.
    """
    started_s = time.perf_counter()
    left = iter(enumerate(prompts))

    async def work() -> None:
        for place, ids in left:
            take(place, await runtime.embed(ids, salt=salt, priority=priority))

    tasks = [asyncio.create_task(work()) for _ in range(min(MAX_IN_FLIGHT, len(prompts)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    metrics.observe_embeddings(len(prompts), sum(map(len, prompts)), time.perf_counter() - started_s)
