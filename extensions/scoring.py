"""Log-probabilities of given tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from engine import errors
from engine.client import EventStream
from engine.reports import rebuild
from engine.request import Distribution, TokenLogprob

Result = TypeVar("Result")


async def read_logprobs(stream: EventStream) -> list[TokenLogprob]:
    """The reports that a request for log-probabilities gives; closes its stream.

    Raises:
        EngineStopped: The engine is gone.
        EngineError: The engine gave the request up.
    """
    found: list[TokenLogprob] = []
    try:
        async for event in stream:
            if event.error is not None:
                raise rebuild(event.error)
            found += event.prompt_logprobs or ()
            if event.finish_reason is not None:
                return found
    finally:
        await stream.aclose()
    raise errors.EngineStopped("the engine ended a request before its end")


async def read_rows(stream: EventStream) -> tuple[list[Distribution], list[bytes]]:
    """The distributions that a request for rows gives, and what they attend to if it asks; closes its stream.

    Raises:
        EngineStopped: The engine is gone.
        EngineError: The engine gave the request up.
    """
    try:
        async for event in stream:
            if event.error is not None:
                raise rebuild(event.error)
            if event.finish_reason is not None:
                return event.rows, event.attention
    finally:
        await stream.aclose()
    raise errors.EngineStopped("the engine ended a request before its end")


async def gather_all(work: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results of all; when one fails the others are cancelled, and have ended when its error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
