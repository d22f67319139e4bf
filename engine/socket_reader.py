"""ZeroMQ sockets in an event loop without a future for every message: `zmq.asyncio` costs three times as much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import zmq

MAX_AT_ONCE = 64
"""Messages taken before others have their turn in the event loop."""

_POLLIN = int(zmq.POLLIN)
"""As a number: combining flags of an enumeration costs more than asking the socket."""


class SocketReader:
    """Calls back in the running event loop while a socket has something to read.

    A socket's descriptor tells of news once, and sending may swallow it: call `check` after a send.

    Args:
        socket: A socket that this reader alone receives from.
        take: Receives one message; it is there.
        broke: Told what `take` raised; nothing is taken any more then.
        settle: Called after messages were taken, when no more are there or others have their turn.
    """

    def __init__(
        self,
        socket: zmq.Socket[Any],
        take: Callable[[], None],
        broke: Callable[[Exception], None],
        settle: Callable[[], None] | None = None,
    ) -> None:
        self._socket = socket
        self._take = take
        self._broke = broke
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.get(zmq.FD))
        self._is_open = True
        self._is_due = False
        self._loop.add_reader(self._descriptor, self._read)
        self.check()

    def check(self) -> None:
        """Looks again, soon; once, however often it is called until then."""
        if not self._is_due:
            self._loop.call_soon(self._look)
            self._is_due = True

    def close(self) -> None:
        """Stops calling back; the socket stays open. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._descriptor)

    def _look(self) -> None:
        self._is_due = False
        self._read()

    def _read(self) -> None:
        try:
            num_taken = self._take_all()
            if num_taken and self._settle is not None:
                self._settle()
        except Exception as error:
            self.close()
            self._broke(error)
            return
        if num_taken == MAX_AT_ONCE:
            self.check()

    def _take_all(self) -> int:
        """Takes what is there, if that is not too much at once; returns how many messages it took."""
        for num_taken in range(MAX_AT_ONCE):
            if not self._is_open or not int(self._socket.get(zmq.EVENTS)) & _POLLIN:
                return num_taken
            self._take()
        return MAX_AT_ONCE
