"""A gateway's connection to an engine process: requests out, frames in, and what to do when the engine goes away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

import zmq
from zmq.utils.monitor import recv_monitor_message

from engine.contexts.commands import ContextCommand, ContextInfo
from engine.errors import EngineStopped
from engine.kv.commands import AccountCommand
from engine.kv.overview import KVMap
from engine.leases.lease import LeaseRevoked
from engine.messages import Command, Hello, decode_frame, encode
from engine.request import ConstraintSpec, EngineInfo, GenerateRequest
from engine.socket_reader import SocketReader
from engine.stats import AccountCharge, EngineStats
from engine.streams import RequestStream, StreamTable

log = logging.getLogger(__name__)


class EngineConnection:
    """Implements `engine.client.EngineClient` over a socket to an engine process.

    It reconnects by itself: when the engine goes away every stream ends with `EngineStopped`, and once another serves
    the same endpoint, requests are taken again.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._monitor: zmq.Socket[bytes] | None = None
        self._streams = StreamTable(self._send)
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._charges: dict[str, AccountCharge] = {}
        self._watchers: dict[str, Callable[[LeaseRevoked], None]] = {}
        self._welcomed = asyncio.Event()
        self._readers: list[SocketReader] = []
        # Commands that leave together with the next turn of the event loop.
        self._outgoing: list[bytes] = []

    async def connect(self, timeout_s: float | None = None) -> None:
        """Starts connecting and, unless `timeout_s` is 0, waits until an engine has answered.

        Raises:
            EngineStopped: None answered in time; the connection keeps trying.
        """
        if self._socket is None:
            self._open()
        if timeout_s == 0:
            return
        try:
            await asyncio.wait_for(self._welcomed.wait(), timeout_s)
        except TimeoutError:
            raise EngineStopped(f"no engine answered within {timeout_s} s") from None

    @property
    def info(self) -> EngineInfo:
        """See `EngineClient.info`."""
        if self._info is None:
            raise EngineStopped("no engine is connected")
        return self._info

    @property
    def stats(self) -> EngineStats:
        """See `EngineClient.stats`."""
        return self._stats

    @property
    def charges(self) -> Mapping[str, AccountCharge]:
        """See `EngineClient.charges`."""
        return self._charges

    @property
    def is_ready(self) -> bool:
        """See `EngineClient.is_ready`."""
        return self._info is not None

    async def submit(self, request: GenerateRequest) -> RequestStream:
        """See `EngineClient.submit`."""
        if self._info is None:
            raise EngineStopped("no engine is connected")
        return await self._streams.submit(request)

    async def compile(self, constraint: ConstraintSpec) -> None:
        """See `EngineClient.compile`."""
        if self._info is None:
            raise EngineStopped("no engine is connected")
        await self._streams.compile(constraint)

    def tell(self, command: ContextCommand | AccountCommand) -> None:
        """See `EngineClient.tell`."""
        self._send(command)

    async def describe_context(self, context_id: str) -> ContextInfo:
        """See `EngineClient.describe_context`."""
        if self._info is None:
            raise EngineStopped("no engine is connected")
        return await self._streams.describe_context(context_id)

    async def describe_kv(self) -> KVMap:
        """See `EngineClient.describe_kv`."""
        if self._info is None:
            raise EngineStopped("no engine is connected")
        return await self._streams.describe_kv()

    def watch_lease(self, lease_id: str, told: Callable[[LeaseRevoked], None]) -> None:
        """See `EngineClient.watch_lease`."""
        self._watchers[lease_id] = told

    def unwatch_lease(self, lease_id: str) -> None:
        """See `EngineClient.unwatch_lease`."""
        self._watchers.pop(lease_id, None)

    async def close(self) -> None:
        """See `EngineClient.close`."""
        self._send_all()
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.close()
        self._lost("the connection was closed")
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket = self._monitor = None
        self._context.destroy(linger=0)

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        # What was meant for an engine that died must not reach its successor.
        socket.setsockopt(zmq.IMMEDIATE, 1)
        self._monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        socket.connect(self._endpoint)
        self._socket = socket
        self._readers = [
            SocketReader(self._monitor, self._watch, self._broke),
            SocketReader(socket, self._receive, self._broke, self._streams.hand_over),
        ]

    def _watch(self) -> None:
        assert self._monitor is not None
        event = recv_monitor_message(self._monitor)
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._send(Hello())
        else:
            self._lost("the engine process ended")

    def _receive(self) -> None:
        assert self._socket is not None
        frame = decode_frame(self._socket.recv())
        if frame.info is not None:
            self._info = frame.info
            self._welcomed.set()
        if frame.stats is not None:
            self._stats = frame.stats
        if frame.charges:
            self._charges.update((charge.account, charge) for charge in frame.charges)
        for revoked in frame.revoked:
            self._tell_lease(revoked)
        self._streams.dispatch(frame)

    def _tell_lease(self, revoked: LeaseRevoked) -> None:
        told = self._watchers.pop(revoked.lease_id, None)
        if told is not None:
            told(revoked)

    def _broke(self, error: Exception) -> None:
        """Nothing is read any more: nobody must go on waiting for what would have come."""
        log.error("the connection to the engine broke", exc_info=error)
        self._lost(f"the connection to the engine broke: {type(error).__name__}")

    def _lost(self, message: str) -> None:
        self._info = None
        self._outgoing.clear()
        self._stats = EngineStats()
        self._charges = {}
        self._welcomed.clear()
        for lease_id in tuple(self._watchers):
            self._tell_lease(LeaseRevoked("", lease_id, "engine"))
        self._streams.fail_all(message)

    def _send(self, command: Command) -> None:
        """Queues a command; if the engine is gone it is dropped, and the monitor's word ends the streams.

        All that one turn of the event loop has to say leaves in one message, a part each: most of what a message costs
        is waking those who carry it. The engine begins what came together in one step.
        """
        if self._socket is None:
            return
        if not self._outgoing:
            self._loop.call_soon(self._send_all)
        self._outgoing.append(encode(command))

    def _send_all(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._socket is None or not outgoing:
            return
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(outgoing, zmq.NOBLOCK)
        for reader in self._readers:
            reader.check()
