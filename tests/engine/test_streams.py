"""Streams of events on the caller's side: order, merging, endings, and what is sent when one is given up."""

from __future__ import annotations

import asyncio

import pytest

from engine.errors import EngineStopped, QueueFull
from engine.messages import Abort, Command, Frame, Refusal, Stop, Submit
from engine.reports import report
from engine.request import FinishReason, GenerateRequest, TokenEvent
from engine.sampling.params import SamplingParams
from engine.streams import RequestStream, StreamTable


def _request(name: str = "r", n: int = 1) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_ids=[1], sampling=SamplingParams(max_tokens=9), n=n)


def _event(*tokens: int, index: int = 0, finish: FinishReason | None = None) -> TokenEvent:
    return TokenEvent(request_id="r", index=index, token_ids=list(tokens), finish_reason=finish)


class Door:
    """A stream table with a recorded sending side."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.table = StreamTable(self.sent.append)

    async def open(self, request: GenerateRequest) -> RequestStream:
        pending = asyncio.ensure_future(self.table.submit(request))
        await asyncio.sleep(0)
        self.table.dispatch(Frame(accepted=[request.request_id]))
        return await pending

    def hand(self, *events: TokenEvent) -> None:
        self.table.dispatch(Frame(events=list(events)))
        self.table.hand_over()


async def test_events_that_pile_up_are_merged_and_end_the_stream() -> None:
    door = Door()
    stream = await door.open(_request())
    door.table.dispatch(Frame(events=[_event(1), _event(2)]))
    door.table.dispatch(Frame(events=[_event(3, finish=FinishReason.LENGTH)]))
    events = [event async for event in stream]
    assert [event.token_ids for event in events] == [[1, 2, 3]]
    assert events[0].finish_reason is FinishReason.LENGTH
    assert len(door.table) == 0
    await stream.aclose()
    assert not any(isinstance(command, Abort) for command in door.sent)


async def test_sequences_of_one_request_are_merged_apart() -> None:
    door = Door()
    stream = await door.open(_request(n=2))
    stop = FinishReason.STOP
    door.table.dispatch(
        Frame(events=[_event(1), _event(5, index=1), _event(2, finish=stop), _event(6, index=1, finish=stop)])
    )
    assert [(event.index, event.token_ids) async for event in stream] == [(0, [1, 2]), (1, [5, 6])]


async def test_a_reader_that_waits_is_woken_by_the_next_event() -> None:
    door = Door()
    stream = await door.open(_request())
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    assert not reading.done()
    door.table.dispatch(Frame(events=[_event(4)]))
    door.table.hand_over()
    assert (await reading).token_ids == [4]


async def test_what_comes_between_first_and_last_while_the_reader_waits_is_taken_without_it() -> None:
    door = Door()
    stream = await door.open(_request())
    taken: list[TokenEvent] = []
    stream.divert(taken.append)
    first = _event(1)
    first.num_cached_tokens = 0
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    door.hand(first)
    assert (await reading).token_ids == [1]
    door.hand(_event(2))
    assert (await anext(stream)).token_ids == [2]
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    door.hand(_event(3))
    door.hand(_event(4), _event(5))
    await asyncio.sleep(0)
    assert not reading.done()
    assert [event.token_ids for event in taken] == [[3], [4, 5]]
    door.hand(_event(6, finish=FinishReason.LENGTH))
    assert (await reading).token_ids == [6]
    assert len(taken) == 2


async def test_nothing_is_taken_once_the_reader_has_something_to_read() -> None:
    door = Door()
    stream = await door.open(_request(n=2))
    taken: list[TokenEvent] = []
    stream.divert(taken.append)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    door.hand(_event(1), _event(2, index=1, finish=FinishReason.STOP), _event(3))
    door.hand(_event(4))
    assert [event.token_ids for event in taken] == [[1, 3]]
    assert (await reading).token_ids == [2]
    assert (await anext(stream)).token_ids == [4]


async def test_what_taking_raises_is_raised_to_the_reader_who_can_go_on() -> None:
    door = Door()
    stream = await door.open(_request())

    def refuse(event: TokenEvent) -> None:
        raise ValueError(f"not {event.token_ids}")

    stream.divert(refuse)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    door.hand(_event(1))
    door.hand(_event(2))
    with pytest.raises(ValueError, match=r"not \[1\]"):
        await reading
    assert (await anext(stream)).token_ids == [2]


async def test_nothing_is_taken_for_a_reader_that_was_cancelled() -> None:
    door = Door()
    stream = await door.open(_request())
    taken: list[TokenEvent] = []
    stream.divert(taken.append)
    reading = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    reading.cancel()
    door.hand(_event(1))
    await asyncio.gather(reading, return_exceptions=True)
    assert taken == []
    assert (await anext(stream)).token_ids == [1]


async def test_closing_an_unfinished_stream_aborts_it_once() -> None:
    door = Door()
    stream = await door.open(_request())
    await stream.aclose()
    await stream.aclose()
    assert door.sent[1:] == [Abort("r")]
    assert len(door.table) == 0
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_a_stopped_sequence_ends_alone_and_its_late_events_are_dropped() -> None:
    door = Door()
    stream = await door.open(_request(n=2))
    await stream.stop_sequence(0)
    assert door.sent[1:] == [Stop("r", 0)]
    door.table.dispatch(Frame(events=[_event(1), _event(2, index=1, finish=FinishReason.STOP)]))
    assert [(event.index, event.token_ids) async for event in stream] == [(1, [2])]


async def test_a_refusal_is_raised_to_who_asked() -> None:
    door = Door()
    pending = asyncio.ensure_future(door.table.submit(_request()))
    await asyncio.sleep(0)
    door.table.dispatch(Frame(refused=[Refusal("r", report(QueueFull(7)))]))
    with pytest.raises(QueueFull):
        await pending
    assert len(door.table) == 0
    assert [type(command) for command in door.sent] == [Submit]


async def test_a_caller_cancelled_while_it_waits_for_acceptance_aborts_what_may_have_started() -> None:
    door = Door()
    pending = asyncio.ensure_future(door.table.submit(_request()))
    await asyncio.sleep(0)
    pending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pending
    assert door.sent[1:] == [Abort("r")]
    assert len(door.table) == 0
    door.table.dispatch(Frame(accepted=["r"], events=[_event(1)]))


async def test_when_the_engine_goes_every_stream_and_every_wait_ends_with_it() -> None:
    door = Door()
    stream = await door.open(_request())
    door.table.dispatch(Frame(events=[_event(1)]))
    waiting = asyncio.ensure_future(door.table.submit(_request("other")))
    await asyncio.sleep(0)
    door.table.fail_all("the engine process ended")
    assert (await anext(stream)).token_ids == [1]
    with pytest.raises(EngineStopped, match="process ended"):
        await anext(stream)
    with pytest.raises(EngineStopped):
        await waiting
    await stream.aclose()
    assert not any(isinstance(command, Abort) for command in door.sent)
