"""An engine process: one `EngineLoop` behind a ZeroMQ socket, many gateways in front of it.

Between steps it takes commands; while idle it sleeps in `poll`. It ends when its parent's end of a pipe closes, so it
cannot outlive the parent, however that one dies.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import zmq

from engine.contexts.commands import (
    AppendTokens,
    ContextCommand,
    EndLease,
    ExportContext,
    ForkContext,
    ImportContext,
    KeepContext,
    KeepExport,
    OpenContext,
    ReleaseContexts,
    ReleaseExport,
    RetainContext,
    TruncateContext,
)
from engine.errors import EngineError, QueueFull, SequenceNotFound
from engine.kv.commands import SetCeilings, SetShares
from engine.loop import EngineLoop, Prepared
from engine.messages import (
    Abort,
    Advance,
    Command,
    Compile,
    ContextDescribed,
    DescribeContext,
    DescribeKV,
    Frame,
    Guess,
    Hello,
    KVDescribed,
    Refusal,
    Stop,
    Submit,
    decode_command,
    encode,
)
from engine.reports import report
from engine.request import GenerateRequest, TokenEvent
from engine.stats import AccountCharge

log = logging.getLogger(__name__)

STATS_INTERVAL_S = 1.0
TEND_INTERVAL_S = 0.25
"""How often it looks for what is due by time alone."""
PARENT_INTERVAL_S = 0.05
"""How often a busy engine looks whether its parent is still there."""
PREPARING_INTERVAL_MS = 2
"""How often an idle engine looks whether a constraint is compiled."""
MAX_PREPARING = 256
"""Requests whose constraints may be compiled or wait for it."""
MAX_QUEUED_FRAMES = 20_000
"""Frames that may wait for one gateway. One that reads nothing for so long is taken for dead."""


_POLLIN = int(zmq.POLLIN)
_FIRST_PART = int(zmq.NOBLOCK | zmq.SNDMORE)
_LAST_PART = int(zmq.NOBLOCK)


@dataclass(slots=True)
class _Gateway:
    """One connected gateway.

    Attributes:
        identity: Its name on the socket.
        requests: Its requests with the sequences still open.
        contexts: Ids of the contexts that it holds.
        frame: What it will be told next.
    """

    identity: bytes
    requests: dict[str, set[int]] = field(default_factory=dict)
    contexts: set[str] = field(default_factory=set)
    frame: Frame = field(default_factory=Frame)


@dataclass(frozen=True, slots=True)
class _Preparing:
    """A request whose constraint is being compiled; or none, where nothing but that is wanted."""

    gateway: _Gateway
    request: GenerateRequest | None
    prepared: Prepared


class EngineServer:
    """Routes commands to the loop and events to whoever asked.

    Args:
        loop: The engine.
        socket: A bound ROUTER socket that reports unreachable peers (`ROUTER_MANDATORY`).
        parent: File descriptor that becomes readable, at its end, when the parent is gone or wants us to stop.
    """

    def __init__(self, loop: EngineLoop, socket: zmq.Socket[bytes], parent: int) -> None:
        self._loop = loop
        self._socket = socket
        self._parent = parent
        self._gateways: dict[bytes, _Gateway] = {}
        self._owners: dict[str, _Gateway] = {}
        self._preparing: dict[str, _Preparing] = {}
        self._charges: dict[str, AccountCharge] = {}
        self._has_news = False
        self._stats_due_s = 0.0
        self._tend_due_s = 0.0
        self._parent_due_s = 0.0
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(parent, zmq.POLLIN)

    def run(self) -> None:
        """Serves until the parent closes its end."""
        try:
            while self._take_commands():
                if self._preparing:
                    self._submit_prepared()
                if self._has_news:
                    self._send_frames()  # whoever decides on the next token must not wait for a step
                events = self._loop.step() if self._loop.has_work else []
                self._route(events)
                self._tend()
                self._send_frames()
        finally:
            for preparing in self._preparing.values():
                preparing.prepared.cancel()

    def _tend(self) -> None:
        if self._loop.wants_tending and (now := time.monotonic()) >= self._tend_due_s:
            self._tend_due_s = now + TEND_INTERVAL_S
            self._route(self._loop.tend())

    def _take_commands(self) -> bool:
        """Reads all that came; waits only while there is nothing to compute. False when it is time to stop."""
        now = time.monotonic()
        if now >= self._parent_due_s or not self._loop.has_work:
            self._parent_due_s = now + PARENT_INTERVAL_S
            ready = dict(self._poller.poll(self._patience_ms()))
            if self._parent in ready and os.read(self._parent, 1024) == b"":
                return False
        # Asking is a third of the price of a receive that finds nothing, and this is asked in every step.
        while int(self._socket.get(zmq.EVENTS)) & _POLLIN:
            identity, *payloads = self._socket.recv_multipart(zmq.NOBLOCK)
            for payload in payloads:
                self._obey(identity, payload)
        return True

    def _patience_ms(self) -> int | None:
        """How long commands may be waited for: not at all while there is work, for ever if nobody wants numbers."""
        if self._loop.has_work:
            return 0
        if self._preparing:
            return PREPARING_INTERVAL_MS
        due_s = self._stats_due_s if self._gateways else math.inf
        if self._loop.wants_tending:
            due_s = min(due_s, self._tend_due_s)
        return None if due_s == math.inf else max(0, math.ceil((due_s - time.monotonic()) * 1e3))

    def _obey(self, identity: bytes, payload: bytes) -> None:
        try:
            command: Command = decode_command(payload)
        except msgspec.DecodeError:
            log.exception("a command could not be read")
            return
        gateway = self._gateways.get(identity)
        if gateway is None:
            gateway = self._gateways[identity] = _Gateway(identity)
        match command:
            case Hello():
                gateway.frame.info = self._loop.info
                gateway.frame.stats = self._loop.stats
                gateway.frame.charges = self._loop.charges
            case Submit(request):
                self._take(gateway, request)
            case Abort(request_id) if request_id in self._preparing:
                self._preparing.pop(request_id).prepared.cancel()
            case Abort(request_id) if request_id in gateway.requests:
                self._loop.abort(request_id)
                self._ended(gateway, request_id, gateway.requests[request_id])
            case Stop(request_id, index) if request_id in gateway.requests:
                self._loop.stop(request_id, index)
                self._ended(gateway, request_id, {index})
            case Advance(request_id, token_id, num_steps, banned, num_taken) if request_id in gateway.requests:
                self._route(self._loop.advance(request_id, token_id, num_steps, banned, num_taken))
            case Guess(request_id, token_ids, proposals) if request_id in gateway.requests:
                self._loop.guess(request_id, token_ids, proposals)
            case Compile(request_id, constraint):
                self._prepare(gateway, request_id, None, lambda: self._loop.compile(constraint))
            case DescribeContext(op_id, context_id):
                is_known = context_id in gateway.contexts or self._loop.is_of_nobody(context_id)
                info = self._loop.describe_context(context_id if is_known else "")
                gateway.frame.contexts.append(ContextDescribed(op_id, info))
            case DescribeKV(op_id):
                gateway.frame.kv_maps.append(KVDescribed(op_id, self._loop.describe_kv()))
            case (
                OpenContext()
                | AppendTokens()
                | ForkContext()
                | TruncateContext()
                | ReleaseContexts()
                | RetainContext()
                | EndLease()
                | KeepContext()
                | ExportContext()
                | ImportContext()
                | KeepExport()
                | ReleaseExport()
            ):
                self._hold(gateway, command)
            case SetCeilings() | SetShares():
                self._loop.govern(command)

    def _hold(self, gateway: _Gateway, command: ContextCommand) -> None:
        """Passes on what a gateway wants with its contexts; it has no say over those of others."""
        match command:
            case OpenContext(context_id):
                gateway.contexts.add(context_id)
            case ForkContext(context_id, new_ids) if context_id in gateway.contexts:
                gateway.contexts.update(new_ids)
            case ReleaseContexts(context_ids):
                known = gateway.contexts.intersection(context_ids)
                gateway.contexts -= known
                command = ReleaseContexts(list(known))
            case AppendTokens(context_id) | TruncateContext(context_id) if context_id in gateway.contexts:
                pass
            case RetainContext(context_id) | EndLease(context_id) if context_id in gateway.contexts:
                pass
            case ExportContext(context_id) if context_id in gateway.contexts:
                pass
            case KeepContext(context_id) if context_id in gateway.contexts:
                gateway.contexts.discard(context_id)
            case ImportContext(export_id, context_id) if self._loop.is_exported(export_id):
                gateway.contexts.add(context_id)
            case KeepExport() | ReleaseExport():
                pass
            case _:
                return
        self._route(self._loop.obey(command))

    def _take(self, gateway: _Gateway, request: GenerateRequest) -> None:
        """Hands a request to the loop, at once or when what it needs is made ready."""
        wanted = (request.context_id, *request.lane_ids) if request.context_id else ()
        if not gateway.contexts.issuperset(wanted):
            gateway.frame.refused.append(Refusal(request.request_id, report(SequenceNotFound("no such context"))))
            return
        changes = any(lane.changes for lane in request.passes)
        if request.constraint is None and request.attention is None and not changes:
            self._submit(gateway, request, None)
            return
        self._prepare(gateway, request.request_id, request, lambda: self._loop.prepare(request))

    def _prepare(
        self,
        gateway: _Gateway,
        request_id: str,
        request: GenerateRequest | None,
        begin: Callable[[], Prepared | None],
    ) -> None:
        """Begins what is done beside the engine before it takes a request, or for its own sake."""
        try:
            prepared = begin()
            if prepared is not None and len(self._preparing) >= MAX_PREPARING:
                prepared.cancel()
                raise QueueFull(len(self._preparing))
        except EngineError as error:
            gateway.frame.refused.append(Refusal(request_id, report(error)))
            return
        if prepared is None or prepared.done():
            self._prepared(gateway, request_id, request, prepared)
            return
        self._preparing[request_id] = _Preparing(gateway, request, prepared)

    def _prepared(
        self, gateway: _Gateway, request_id: str, request: GenerateRequest | None, prepared: Prepared | None
    ) -> None:
        if request is not None:
            self._submit(gateway, request, prepared)
            return
        assert prepared is not None
        try:
            prepared.result()
        except EngineError as error:
            gateway.frame.refused.append(Refusal(request_id, report(error)))
        else:
            gateway.frame.accepted.append(request_id)

    def _submit(self, gateway: _Gateway, request: GenerateRequest, prepared: Prepared | None) -> None:
        try:
            self._loop.submit(request, prepared)
        except EngineError as error:
            gateway.frame.refused.append(Refusal(request.request_id, report(error)))
        else:
            gateway.frame.accepted.append(request.request_id)
            gateway.requests[request.request_id] = set(range(request.n))
            self._owners[request.request_id] = gateway

    def _submit_prepared(self) -> None:
        """Hands over the requests for which all is ready by now."""
        for request_id, preparing in tuple(self._preparing.items()):
            if preparing.prepared.done():
                del self._preparing[request_id]
                self._prepared(preparing.gateway, request_id, preparing.request, preparing.prepared)

    def _ended(self, gateway: _Gateway, request_id: str, indices: set[int]) -> None:
        """Strikes off sequences of a request that have ended."""
        left = gateway.requests[request_id] - indices
        if left:
            gateway.requests[request_id] = left
        else:
            del gateway.requests[request_id]
            del self._owners[request_id]

    def _route(self, events: list[TokenEvent]) -> None:
        for event in events:
            gateway = self._owners.get(event.request_id)
            if gateway is None:
                continue
            gateway.frame.events.append(event)
            self._has_news = True
            if event.finish_reason is not None:
                self._ended(gateway, event.request_id, {event.index})

    def _send_frames(self) -> None:
        self._has_news = False
        now = time.monotonic()
        if now >= self._stats_due_s:
            self._stats_due_s = now + STATS_INTERVAL_S
            charges = self._take_charges()
            for gateway in self._gateways.values():
                gateway.frame.stats = self._loop.stats
                gateway.frame.charges = gateway.frame.charges or charges
        for revoked in self._loop.take_revoked():
            for gateway in self._gateways.values():
                if revoked.context_id in gateway.contexts:
                    gateway.frame.revoked.append(revoked)
        for gateway in tuple(self._gateways.values()):
            if not gateway.frame.is_empty:
                self._send(gateway)

    def _take_charges(self) -> list[AccountCharge]:
        """Accounts whose charge or level is another than when this was last asked."""
        changed = [charge for charge in self._loop.charges if self._charges.get(charge.account) != charge]
        self._charges.update((charge.account, charge) for charge in changed)
        return changed

    def _send(self, gateway: _Gateway) -> None:
        frame, gateway.frame = gateway.frame, Frame()
        try:
            self._socket.send(gateway.identity, _FIRST_PART)
            self._socket.send(encode(frame), _LAST_PART)
        except zmq.ZMQError as error:
            level = logging.WARNING if gateway.requests else logging.DEBUG
            log.log(level, "a gateway is gone (%s); %d requests end with it", error, len(gateway.requests))
            del self._gateways[gateway.identity]
            for request_id, preparing in tuple(self._preparing.items()):
                if preparing.gateway is gateway:
                    self._preparing.pop(request_id).prepared.cancel()
            for request_id in list(gateway.requests):
                self._loop.abort(request_id)
                del self._owners[request_id]
            if gateway.contexts:
                self._loop.obey(ReleaseContexts(list(gateway.contexts)))


@contextlib.contextmanager
def bound_socket(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """A ROUTER socket at `endpoint`, closed afterwards without waiting for anyone."""
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
    try:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.SNDHWM, MAX_QUEUED_FRAMES)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(endpoint)
        yield socket
    finally:
        socket.close()
        context.term()
