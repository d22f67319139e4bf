"""Streams that end their work whatever happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from gateway.errors import ClientGone
from gateway.sse import BODY_WRITER, BodyWriter, EventStreamResponse, Heartbeat, unless_disconnected


class Work:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.num_closes = 0

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.num_closes += 1


async def stays() -> Message:
    """A client that never leaves."""
    await asyncio.Event().wait()
    raise AssertionError


async def leaves() -> Message:
    """A client that is gone."""
    return {"type": "http.disconnect"}


class Sent:
    """An ASGI `send` that keeps what it is given; blocks at the message of that number."""

    def __init__(self, blocks_at: int | None = None) -> None:
        self.messages: list[Message] = []
        self._blocks_at = blocks_at

    async def __call__(self, message: Message) -> None:
        if len(self.messages) == self._blocks_at:
            await asyncio.Event().wait()
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


SCOPE = {"type": "http", "method": "POST"}


async def events(*items: bytes | float) -> AsyncGenerator[bytes, None]:
    for item in items:
        if isinstance(item, float):
            await asyncio.sleep(item)
        else:
            yield item


def response(items: AsyncGenerator[bytes, None], work: Work, send_timeout_s: float = 10.0) -> EventStreamResponse:
    return EventStreamResponse(items, work, heartbeat_s=0, send_timeout_s=send_timeout_s)


async def test_ready_made_events_are_sent_as_they_are() -> None:
    work, sent = Work(), Sent()
    await response(events(b"data: 1\n\n", b"data: [DONE]\n\n"), work)(SCOPE, stays, sent)
    assert sent.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert sent.messages[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert work.num_closes == 1


async def test_work_is_closed_when_the_client_leaves_before_the_first_event() -> None:
    work = Work()
    async with asyncio.timeout(60):
        await response(events(600.0), work)(SCOPE, leaves, Sent())
    assert work.num_closes == 1


async def test_work_is_closed_when_nobody_reads() -> None:
    work = Work()
    async with asyncio.timeout(60):
        await response(events(b"data: 1\n\n", b"data: 2\n\n"), work, 0.05)(SCOPE, stays, Sent(blocks_at=1))
    assert work.num_closes == 1


async def test_a_slow_producer_is_no_stalled_client() -> None:
    work, sent = Work(), Sent()
    await response(events(b"data: 1\n\n", 0.2, b"data: 2\n\n"), work, 0.05)(SCOPE, stays, sent)
    assert sent.body == b"data: 1\n\ndata: 2\n\n"


async def test_work_is_closed_when_sending_fails() -> None:
    work = Work()

    async def broken(message: Message) -> None:
        raise OSError("the pipe is broken")

    with pytest.raises(OSError, match="broken"):
        await response(events(b"data: 1\n\n"), work)(SCOPE, stays, broken)
    assert work.num_closes == 1


async def test_work_is_closed_when_the_response_is_cancelled() -> None:
    work = Work()
    task = asyncio.create_task(response(events(600.0), work)(SCOPE, stays, Sent()))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert work.num_closes == 1


class Writer:
    """A connection's writer that keeps what it is given; there is always room for more."""

    is_free = True

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.has_data = asyncio.Event()

    def write(self, data: bytes) -> bool:
        self.data.append(data)
        self.has_data.set()
        return self.is_free

    async def drain(self) -> None:
        raise AssertionError("nothing is to be drained")


async def test_events_can_be_written_past_those_that_are_read_once_the_response_has_begun() -> None:
    work, sent, writer = Work(), Sent(), Writer()
    given: list[BodyWriter] = []
    go_on = asyncio.Event()

    async def waiting() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        await go_on.wait()
        yield b"data: 3\n\n"

    def divert(writer: BodyWriter) -> None:
        assert sent.messages[0]["type"] == "http.response.start"
        given.append(writer)

    answer = EventStreamResponse(waiting(), work, heartbeat_s=0, send_timeout_s=10, divert=divert)
    responding = asyncio.ensure_future(answer({**SCOPE, "extensions": {BODY_WRITER: writer}}, stays, sent))
    async with asyncio.timeout(60):
        await writer.has_data.wait()
        given[0].write(b"data: 2\n\n")
        go_on.set()
        await responding
    assert writer.data == [b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"]
    assert work.num_closes == 1


async def test_without_a_writer_of_the_connection_all_events_are_read() -> None:
    def divert(writer: BodyWriter) -> None:
        raise AssertionError("nothing can be written past the server's own sending")

    work, sent = Work(), Sent()
    answer = EventStreamResponse(events(b"data: 1\n\n"), work, heartbeat_s=0, send_timeout_s=10, divert=divert)
    await answer(SCOPE, stays, sent)
    assert sent.body == b"data: 1\n\n"


def test_a_heartbeat_is_one_comment_line() -> None:
    assert Heartbeat().encode() == b": keep-alive\n"


async def test_work_runs_while_the_client_stays() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert await unless_disconnected(stays, answer()) == 42


async def test_work_is_cancelled_when_the_client_leaves() -> None:
    was_cancelled = False

    async def forever() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    with pytest.raises(ClientGone):
        await unless_disconnected(_after_a_moment, forever())
    assert was_cancelled


async def _after_a_moment() -> Message:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


async def test_a_failure_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await unless_disconnected(stays, fail())
