"""Embeddings: a prompt's hidden states as one vector, worked out by the engine beside all else that it does."""

from __future__ import annotations

import asyncio
import sys
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from engine import errors
from engine.client import EngineClient
from engine.reports import rebuild
from engine.request import FinishReason, GenerateRequest, Pooling, TokenEvent
from engine.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Embedding:
    """One prompt's.

    Attributes:
        values: float32, as many as the model's hidden states are wide; not normalised.
        num_prompt_tokens: Tokens of the prompt.
    """

    values: array[float]
    num_prompt_tokens: int


async def embed(
    engine: EngineClient,
    prompt_ids: Sequence[int],
    pooling: Pooling,
    *,
    account: str = "",
    salt: str = "",
    adapter: str = "",
    priority: int = 0,
) -> Embedding:
    """Embeds one prompt; its pages are free when this returns, however it does.

    Args:
        engine: The engine's door.
        prompt_ids: At least one.
        pooling: Which hidden states make the vector.
        account: Opaque label that the engine's KV meter charges.
        salt: Prefix pages are shared only among prompts of the same salt.
        adapter: Name of the adapter that computes it; empty for the model alone.
        priority: Lower enters sooner.

    Raises:
        InvalidRequest: It can never be served (`ContextTooLong` if it does not fit).
        QueueFull: Too many requests wait already.
        EngineStopped: No engine is there, or it went away.
        EngineError: The engine gave the request up.
    """
    request = GenerateRequest(
        request_id=uuid.uuid4().hex,
        prompt_ids=list(prompt_ids),
        sampling=SamplingParams(max_tokens=0),
        account=account,
        salt=salt,
        adapter=adapter,
        priority=priority,
        pooling=pooling,
    )
    stream = await engine.submit(request)
    try:
        async for event in stream:
            if (values := _values(event)) is not None:
                return Embedding(values, len(prompt_ids))
    finally:
        await asyncio.shield(asyncio.ensure_future(stream.aclose()))
    raise errors.EngineStopped("the engine ended a request before its embedding")


def _values(event: TokenEvent) -> array[float] | None:
    if event.finish_reason is FinishReason.ERROR:
        raise errors.EngineError("the request failed") if event.error is None else rebuild(event.error)
    if event.embedding is None:
        return None
    values = array("f", event.embedding)
    if sys.byteorder == "big":
        values.byteswap()
    return values
