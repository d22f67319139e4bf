"""The ways to work on a response: while a client waits, while it reads events, or in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from fastapi import Request, Response

from extensions.output import FinishReason, GenerationStep
from gateway.errors import StoreUnavailable
from gateway.generations import Choice, Generations
from gateway.programs.work import ProgramWork
from gateway.routes.answering import AnswerWork, collect, diverted
from gateway.routes.context import Prompt
from gateway.services import Services
from gateway.sse import BodyWriter, EventStreamResponse, close_shielded
from gateway.state.store import TooLargeToStore
from gateway.tools.turn import ToolTurn
from gateway.translate.responses_events import ResponseWriter, frame
from gateway.translate.responses_object import Body
from gateway.translate.responses_tools import ToolResponseWriter

log = logging.getLogger(__name__)

FLUSH_S = 0.05
"""Events of a response in the background are stored at most so often."""

T = TypeVar("T")

SETTLE_S = 10.0
"""Seconds that the end of such a response waits for a store that is away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One response that is to be made.

    Attributes:
        services: Of the app.
        owner: Whose it is.
        prompt: What it answers.
        work: The engine's part; whoever works on the turn closes it.
        writer: Holds the object.
        is_stored: Whether it is kept.
        conversation_id: Where its items go when it is over.
    """

    services: Services
    owner: str
    prompt: Prompt
    work: Generations | ProgramWork | ToolTurn
    writer: ResponseWriter
    is_stored: bool
    conversation_id: str | None

    @property
    def response(self) -> Body:
        """The object so far."""
        return self.writer.response

    def read(self, step: GenerationStep) -> list[bytes]:
        """The events that more of the work brings."""
        writer = self.writer
        if isinstance(writer, ToolResponseWriter) and isinstance(self.work, ToolTurn):
            return writer.tell(self.work.take_news())
        return writer.read(step.text, step.tokens, step.token_ids, step.finish_reason)

    @property
    def response_id(self) -> str:
        """Its id."""
        response_id: str = self.response["id"]
        return response_id


async def answer_whole(request: Request, turn: Turn) -> Body:
    """Waits for the end, for as long as the client does.

    Raises:
        ClientGone: The client left; nothing is stored.
        EngineStopped: The engine ended first; nothing is stored.
    """
    writer = turn.writer
    (choice,) = await collect(request, turn.work)
    events = [*writer.begin(), *turn.read(_whole(choice))]
    events += _end(turn, choice.finish_reason)
    await _keep(turn, events)
    return writer.response


def _whole(choice: Choice) -> GenerationStep:
    """All of an answer in one step."""
    return GenerationStep(
        index=0,
        text=choice.text,
        tokens=tuple(choice.tokens),
        token_ids=tuple(choice.token_ids),
        finish_reason=cast("FinishReason | None", choice.finish_reason),
    )


def answer_as_stream(turn: Turn) -> Response:
    """Sends events as they come; the work ends when the client goes away."""
    told: list[bytes] = []

    def encode(step: GenerationStep) -> bytes:
        events = turn.read(step)
        told.extend(events)
        return b"".join(map(frame, events))

    events = _events(turn, encode, told)
    return event_stream(turn.services, events, turn.work, diverted(turn.work, encode))


def event_stream(
    services: Services,
    events: AsyncGenerator[bytes, None],
    work: AnswerWork | None = None,
    divert: Callable[[BodyWriter], None] | None = None,
) -> Response:
    """A response of framed events."""
    settings = services.settings
    return EventStreamResponse(
        events,
        work or _NoWork(),
        heartbeat_s=settings.heartbeat_s,
        send_timeout_s=settings.send_timeout_s,
        divert=divert,
    )


class _NoWork:
    """Nothing that would have to end with a stream."""

    async def aclose(self) -> None:
        return


async def _events(
    turn: Turn, encode: Callable[[GenerationStep], bytes], told: list[bytes]
) -> AsyncGenerator[bytes, None]:
    """All events, framed. `encode` makes those of a step and adds them to `told`, which others than this may do too."""
    writer, work = turn.writer, turn.work
    told += writer.begin()
    yield b"".join(map(frame, told))
    finish_reason = None
    try:
        async for step in work:
            finish_reason = step.finish_reason
            if data := encode(step):
                yield data
        last = _end(turn, finish_reason)
    except Exception as error:
        last = _failure(turn, error)
    # Kept before its end is told: whoever reads the end may refer to the response at once.
    if not await _keep(turn, [*told, *last]):
        last[-1] = writer.last_again()
    yield b"".join(map(frame, last))


def _end(turn: Turn, finish_reason: str | None) -> list[bytes]:
    """The last events of a response that came to its end."""
    if isinstance(turn.work, ProgramWork):
        turn.response["extension"] = turn.work.body()
    return turn.writer.end(finish_reason, turn.work.usage)


def _failure(turn: Turn, error: Exception) -> list[bytes]:
    reply = turn.services.to_reply(error)
    if reply.status == 500:
        log.error("response %s failed", turn.response_id, exc_info=error)
    else:
        log.warning("response %s ended early: %s", turn.response_id, error)
    return turn.writer.fail(reply, turn.work.usage)


async def _keep(turn: Turn, events: Sequence[bytes]) -> bool:
    """Stores a response that is over; where that fails the object says so, and the answer is not lost."""
    response = turn.response
    try:
        if turn.is_stored:
            store = turn.services.store
            await store.put(turn.response_id, _fields(turn) | _ending(turn), item_ids=_item_ids(turn))
            await store.add_events(turn.response_id, events)
        await _append_to_conversation(turn)
    except (StoreUnavailable, TooLargeToStore) as error:
        log.warning("response %s could not be stored: %r", turn.response_id, error)
        response["store"] = False
        return False
    return True


def _fields(turn: Turn) -> dict[str, Any]:
    """What is stored of a response from its beginning on."""
    response = turn.response
    return {
        "owner": turn.owner,
        "kind": "response",
        "status": response["status"],
        "body": response,
        "input": turn.prompt.input_items,
    }


def _ending(turn: Turn) -> dict[str, Any]:
    """What is stored of it at its end: the object, and the conversation that a next response goes on with."""
    response = turn.response
    return {
        "status": response["status"],
        "body": response,
        "context": [*turn.prompt.items, *response["output"]],
    }


def _item_ids(turn: Turn) -> list[str]:
    """Ids under which its items are found later: only those that we have made."""
    return [item["id"] for item in turn.response["output"]]


async def _append_to_conversation(turn: Turn) -> None:
    if turn.conversation_id is None or turn.response["status"] in ("failed", "cancelled"):
        return
    items = [*turn.prompt.input_items, *turn.response["output"]]
    if not await turn.services.store.add_items(turn.conversation_id, items):
        log.info("conversation %s was deleted while response %s was made", turn.conversation_id, turn.response_id)


async def begin_in_background(turn: Turn) -> None:
    """Stores a response that is queued and goes on with it on its own.

    Raises:
        StoreUnavailable: Redis did not answer; nothing goes on.
        TooLargeToStore: The input alone exceeds what is stored; nothing goes on.
    """
    store, response_id = turn.services.store, turn.response_id
    try:
        events = turn.writer.begin_queued()
        await store.put(response_id, _fields(turn))
        await store.add_events(response_id, events)
        await turn.services.runs.start(response_id, _work(turn))
    except BaseException:
        await close_shielded(turn.work)
        raise


async def _work(turn: Turn) -> None:
    """Makes a response with nobody waiting. Cancelling it once cancels the response."""
    writer, work = turn.writer, turn.work
    untold: list[bytes] = []
    try:
        is_wanted, finish_reason = await _generate(turn, untold)
        if not is_wanted:
            log.info("response %s was deleted while it was made", turn.response_id)
            return
    except asyncio.CancelledError:
        last = writer.cancel(work.usage)
    except Exception as error:
        last = _failure(turn, error)
    else:
        last = _end(turn, finish_reason)
    finally:
        await close_shielded(work)
    await _to_its_end(_settle(turn, [*untold, *last]))


async def _generate(turn: Turn, untold: list[bytes]) -> tuple[bool, str | None]:
    """Tells the text as it comes; says whether the response is still wanted, and why it ended.

    Args:
        turn: What is made.
        untold: Gets the events that nobody has been told when this ends, however it does.
    """
    untold += turn.writer.go_on()
    store, response = turn.services.store, turn.response
    await _while_it_lasts(turn, store.put(turn.response_id, {"status": "in_progress", "body": response}, mode="settle"))
    flushed_s, finish_reason = 0.0, None
    async for step in turn.work:
        finish_reason = step.finish_reason
        untold += turn.read(step)
        now_s = time.monotonic()
        if untold and now_s - flushed_s >= FLUSH_S:
            flushed_s = now_s
            is_kept = await _while_it_lasts(turn, store.add_events(turn.response_id, list(untold)))
            if is_kept is False:
                return False, None
            if is_kept:
                untold.clear()
    return True, finish_reason


async def _while_it_lasts(turn: Turn, command: Coroutine[Any, Any, T]) -> T | None:
    """Does something in the store; None if that is away, which is no reason to end the work."""
    try:
        return await _cancellable(command)
    except StoreUnavailable as error:
        log.warning("response %s goes on without its store: %s", turn.response_id, error)
        return None


async def _settle(turn: Turn, events: Sequence[bytes]) -> None:
    """Writes down how a response ended, unless that has been done; then tells it. Waits for a store that is away."""
    store = turn.services.store
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        try:
            if await store.put(turn.response_id, _ending(turn), mode="settle", item_ids=_item_ids(turn)):
                await _append_to_conversation(turn)
                await store.add_events(turn.response_id, events)
            return
        except StoreUnavailable:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(FLUSH_S)


async def _cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Waits for a command of the store: its client can swallow a cancellation that comes while a command is sent."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Waits for work that must not be cut; a cancellation meanwhile comes too late and is forgotten."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()
