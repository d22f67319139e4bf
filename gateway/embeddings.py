"""The embeddings of one HTTP request: a few at a time in the engine, so that they crowd nobody out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from extensions.embedding import Embedding
from extensions.output import Usage
from extensions.runtime import Runtime
from gateway.telemetry import Metrics
from gateway.tenancy.payer import Payer

Take = Callable[[int, Embedding], None]
"""Given a prompt's place and its embedding."""

MAX_IN_FLIGHT = 64
"""Most prompts of one request that the engine has at a time."""


async def embed_all(
    runtime: Runtime,
    prompts: Sequence[Sequence[int]],
    take: Take,
    *,
    payer: Payer,
    model: str,
    priority: int,
    metrics: Metrics,
) -> None:
    """Embeds every prompt, in no order; the first failure ends all.

    Args:
        runtime: The door to the model.
        prompts: Token ids.
        take: Called as soon as an embedding is there.
        payer: Who pays.
        model: The model's name, for whoever pays.
        priority: Lower enters sooner.
        metrics: Told what was done.

    Raises:
        InvalidRequest: A prompt can never be served.
        QueueFull: Too many requests wait already.
        EngineStopped: No engine is there, or it went away.
    """
    started_s = time.perf_counter()
    left = iter(enumerate(prompts))

    num_done_tokens = 0

    async def work() -> None:
        nonlocal num_done_tokens
        for place, ids in left:
            embedding = await runtime.embed(
                ids, account=payer.account, salt=payer.salt, adapter=adapter, priority=priority
            )
            take(place, embedding)
            num_done_tokens += len(ids)

    adapter = runtime.info.adapter_of(model)
    payer.begin(model)
    tasks = [asyncio.create_task(work()) for _ in range(min(MAX_IN_FLIGHT, len(prompts)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        payer.end(Usage(num_prompt_tokens=num_done_tokens))
    metrics.observe_embeddings(len(prompts), sum(map(len, prompts)), time.perf_counter() - started_s)
