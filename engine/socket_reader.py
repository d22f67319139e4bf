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
    """

    def __init__(self, socket: zmq.Socket[Any], take: Callable[[], None], broke: Callable[[Exception], None]) -> None:
        self._socket = socket
        self._take = take
        self._broke = broke
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
        for _ in range(MAX_AT_ONCE):
            if not self._is_open or not int(self._socket.get(zmq.EVENTS)) & _POLLIN:
                return
            try:
                self._take()
            except Exception as error:
                self.close()
                self._broke(error)
                return
        self.check()
