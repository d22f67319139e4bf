"""The two ways to answer with generated text: as a stream, or whole."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response

from extensions.output import GenerationStep, Usage
from gateway.generations import Choice, Generations
from gateway.services import Services
from gateway.sse import DONE, BodyWriter, EventStreamResponse, close_shielded, unless_disconnected
from gateway.translate.chunks import encode_json, error_event

log = logging.getLogger(__name__)


class AnswerWork(Protocol):
    """What makes the text of an answer: generations, or a program."""

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        ...

    def __aiter__(self) -> AsyncIterator[GenerationStep]: ...

    async def collect(self) -> list[Choice]:
        """Waits for all text, and closes itself."""
        ...

    async def aclose(self) -> None:
        """Ends whatever still runs. Idempotent."""
        ...


Work = TypeVar("Work", bound=AnswerWork)
WorkEncoded = TypeVar("WorkEncoded", bound=AnswerWork, contravariant=True)


class Chunks(Protocol[WorkEncoded]):
    """Encodes one stream."""

    def encode(self, step: GenerationStep, work: WorkEncoded) -> bytes:
        """Framed events for one step; empty if there is nothing to say."""
        ...

    def end(self, usage: Usage) -> bytes:
        """Framed events before the stream's end; empty if there are none."""
        ...


def stream(services: Services, work: Work, chunks: Chunks[Work]) -> Response:
    """Answers with a stream of events that ends in [DONE], whatever happens."""
    return EventStreamResponse(
        _events(services, work, chunks),
        work,
        heartbeat_s=services.settings.heartbeat_s,
        send_timeout_s=services.settings.send_timeout_s,
        divert=diverted(work, lambda step: chunks.encode(step, work)),
    )


def diverted(work: AnswerWork, encode: Callable[[GenerationStep], bytes]) -> Callable[[BodyWriter], None]:
    """Has steps of `work` written as they come, where that can be had; see `EventStreamResponse` and `Generation`.

    Args:
        work: Makes the steps.
        encode: Frames the events for one; empty if there is nothing to say.
    """

    def divert(writer: BodyWriter) -> None:
        def take(step: GenerationStep) -> bool:
            if not writer.is_free:
                return False
            if data := encode(step):
                writer.write(data)
            return True

        if isinstance(work, Generations):
            work.divert(take)

    return divert


async def _events(services: Services, work: Work, chunks: Chunks[Work]) -> AsyncGenerator[bytes, None]:
    try:
        async for step in work:
            if data := chunks.encode(step, work):
                yield data
        last = chunks.end(work.usage)
    except Exception as error:
        # The status line is gone: clients learn of the failure from an event, and would take silence for success.
        reply = services.to_reply(error)
        if reply.status == 500:
            log.error("a stream failed", exc_info=error)
        else:
            log.warning("a stream ended early: %s", error)
        last = error_event(reply)
    yield last + DONE


async def collect(request: Request, work: AnswerWork) -> list[Choice]:
    """Waits for the whole text, for as long as the client does.

    Raises:
        ClientGone: The client left; the work has been ended.
        EngineStopped: The engine ended first.
    """
    try:
        return await unless_disconnected(request.receive, work.collect())
    finally:
        await close_shielded(work)


COST_HEADER = "x-cost-kv-kib-seconds"
"""KiB of KV times the seconds that a request held them."""


def json_response(body: Mapping[str, Any], status: int = 200, usage: Usage | None = None) -> Response:
    """A JSON answer, which tells what the KV for it has cost if its usage is given."""
    headers = None if usage is None else {COST_HEADER: f"{usage.kv_kib_ms / 1000:.3f}"}
    return Response(encode_json(body), status, headers, media_type="application/json")
