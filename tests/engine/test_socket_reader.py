"""How sockets are read in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import zmq

from engine import socket_reader
from engine.socket_reader import SocketReader


class Counted(zmq.Socket[bytes]):
    """Counts how often it is asked for its state."""

    num_asked = 0

    def get(self, option: int) -> int | bytes:
        if option == zmq.EVENTS:
            type(self).num_asked += 1
        return super().get(option)


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Two ends of a connection; the first is read from."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    near: zmq.Socket[bytes] = Counted(context, zmq.PAIR)
    far = context.socket(zmq.PAIR)
    try:
        near.bind("inproc://pair")
        far.connect("inproc://pair")
        yield near, far
    finally:
        near.close(0)
        far.close(0)
        context.term()


def never(error: Exception) -> None:
    raise AssertionError(error)


class Taken(list[bytes]):
    """Messages, and word of so many of them."""

    def __init__(self, near: zmq.Socket[bytes], wanted: int) -> None:
        self._near = near
        self._wanted = wanted
        self.are_here = asyncio.Event()

    def take(self) -> None:
        self.append(self._near.recv())
        if len(self) >= self._wanted:
            self.are_here.set()


async def test_every_message_is_taken_in_order_whatever_is_sent_meanwhile(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    near, far = pair
    wanted = [b"%d" % number for number in range(3 * socket_reader.MAX_AT_ONCE)]
    taken = Taken(near, len(wanted))
    reader = SocketReader(near, taken.take, never)
    try:
        for message in wanted:
            far.send(message)
            near.send(b"swallows news")
            reader.check()
            await asyncio.sleep(0)
        await asyncio.wait_for(taken.are_here.wait(), 60)
    finally:
        reader.close()
    assert taken == wanted


async def test_it_looks_once_for_many_checks(pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]]) -> None:
    near, far = pair
    taken = Taken(near, 1)
    reader = SocketReader(near, taken.take, never)
    try:
        await asyncio.sleep(0.01)
        before = Counted.num_asked
        for _ in range(50):
            reader.check()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert Counted.num_asked - before == 1
        far.send(b"later")
        reader.check()
        await asyncio.wait_for(taken.are_here.wait(), 60)
    finally:
        reader.close()
    assert taken == [b"later"]


async def test_what_was_taken_is_settled_when_no_more_is_there(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    near, far = pair
    taken = Taken(near, 5)
    settled: list[int] = []
    for number in range(5):
        far.send(b"%d" % number)
    reader = SocketReader(near, taken.take, never, lambda: settled.append(len(taken)))
    try:
        await asyncio.wait_for(taken.are_here.wait(), 60)
        reader.check()
        await asyncio.sleep(0.01)
    finally:
        reader.close()
    assert settled == [5]


async def test_an_error_of_settling_ends_the_reading_like_any_other(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    near, far = pair
    broken: asyncio.Queue[Exception] = asyncio.Queue()

    def settle() -> None:
        raise ValueError("unsettled")

    far.send(b"x")
    reader = SocketReader(near, Taken(near, 1).take, broken.put_nowait, settle)
    reader.check()
    assert str(await asyncio.wait_for(broken.get(), 60)) == "unsettled"


async def test_nothing_is_taken_once_it_is_closed_or_broke(
    pair: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    near, far = pair
    broken: asyncio.Queue[Exception] = asyncio.Queue()

    def take() -> None:
        near.recv()
        raise ValueError("unreadable")

    reader = SocketReader(near, take, broken.put_nowait)
    for _ in range(3):
        far.send(b"x")
    reader.check()
    error = await asyncio.wait_for(broken.get(), 60)
    reader.check()
    await asyncio.sleep(0.01)
    assert str(error) == "unreadable"
    assert broken.empty()
    assert near.recv(zmq.NOBLOCK) == b"x"
