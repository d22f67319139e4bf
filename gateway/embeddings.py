"""The embeddings, or judgements, of one HTTP request: a few at a time in the engine, so that they crowd nobody out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from engine.text.judging import Judgement
from extensions.embedding import Embedding
from extensions.judging import judge
from extensions.output import Usage
from extensions.runtime import Runtime
from gateway.telemetry import Metrics
from gateway.tenancy.payer import Payer

Take = Callable[[int, Embedding], None]
"""Given a prompt's place and its embedding."""

T = TypeVar("T")

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
    adapter = runtime.info.adapter_of(model)

    async def embed(ids: Sequence[int]) -> Embedding:
        return await runtime.embed(ids, account=payer.account, salt=payer.salt, adapter=adapter, priority=priority)

    await _ask_all(prompts, embed, take, payer=payer, model=model, metrics=metrics)


async def judge_all(
    runtime: Runtime,
    prompts: Sequence[Sequence[int]],
    judgement: Judgement,
    *,
    payer: Payer,
    model: str,
    priority: int,
    metrics: Metrics,
) -> list[float]:
    """The probability of yes behind every prompt; the first failure ends all.

    Args:
        runtime: The door to the model.
        prompts: Token ids.
        judgement: The tokens for yes and no.
        payer: Who pays.
        model: The model's name, for whoever pays.
        priority: Lower enters sooner.
        metrics: Told what was done.

    Raises:
        InvalidRequest: A prompt can never be served.
        QueueFull: Too many requests wait already.
        EngineStopped: No engine is there, or it went away.
    """
    adapter = runtime.info.adapter_of(model)
    scores = [0.0] * len(prompts)

    async def ask(ids: Sequence[int]) -> float:
        context = runtime.open_context(ids, account=payer.account, salt=payer.salt, adapter=adapter)
        return await judge(context, judgement, priority=priority)

    await _ask_all(prompts, ask, scores.__setitem__, payer=payer, model=model, metrics=metrics)
    return scores


async def _ask_all(
    prompts: Sequence[Sequence[int]],
    ask: Callable[[Sequence[int]], Awaitable[T]],
    take: Callable[[int, T], None],
    *,
    payer: Payer,
    model: str,
    metrics: Metrics,
) -> None:
    """Asks about every prompt, in no order, and tells `take` its place and what came of it."""
    started_s = time.perf_counter()
    left = iter(enumerate(prompts))

    num_done_tokens = 0

    async def work() -> None:
        nonlocal num_done_tokens
        for place, ids in left:
            take(place, await ask(ids))
            num_done_tokens += len(ids)

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
