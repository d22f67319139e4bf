"""The caller's side of the door: from frames to one stream of events a request."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from engine.contexts.commands import ContextInfo
from engine.errors import EngineError, EngineStopped
from engine.kv.overview import KVMap
from engine.messages import Abort, Advance, Command, Compile, DescribeContext, DescribeKV, Frame, Guess, Stop, Submit
from engine.reports import rebuild
from engine.request import ConstraintSpec, GenerateRequest, Proposal, TokenEvent

Send = Callable[[Command], None]
T = TypeVar("T")


class RequestStream:
    """Implements `engine.client.EventStream` for one accepted request."""

    def __init__(self, request: GenerateRequest, send: Send, forget: Callable[[str], None]) -> None:
        self._request_id = request.request_id
        self._send = send
        self._forget = forget
        self._open = set(range(request.n))
        self._events: deque[TokenEvent] = deque()
        self._error: EngineError | None = None
        # Awaited by the one reader while there is nothing to read; an `asyncio.Event` costs twice as much.
        self._news: asyncio.Future[None] | None = None
        self._take: Callable[[TokenEvent], None] | None = None

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        while not self._events:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None
        return self._events.popleft()

    async def stop_sequence(self, index: int) -> None:
        """Ends one sequence; no event follows for it."""
        if index in self._open:
            self._send(Stop(self._request_id, index))
            self._close(index)

    def advance(self, token_id: int | None, num_steps: int, banned: Sequence[int], num_taken: int = 0) -> None:
        """Goes on with a stepped request."""
        if self._open:
            self._send(Advance(self._request_id, token_id, num_steps, list(banned), num_taken))

    def guess(self, token_ids: Sequence[int], proposals: Sequence[Proposal]) -> None:
        """Says what is expected of a request that waits for it."""
        if self._open:
            self._send(Guess(self._request_id, list(token_ids), list(proposals)))

    def divert(self, take: Callable[[TokenEvent], None]) -> None:
        """Gives `take` what comes while the reader waits."""
        self._take = take

    async def aclose(self) -> None:
        """Ends the request if it still runs."""
        if self._open and self._error is None:
            self._send(Abort(self._request_id))
        self._open.clear()
        self._forget(self._request_id)
        self._wake()

    def put(self, event: TokenEvent) -> None:
        """Takes in one event; merges it with one of the same sequence that nobody has read yet.

        Call `hand_over` when all has been put that is there.
        """
        if event.index not in self._open:
            return
        waiting = None
        if self._events:
            waiting = next((seen for seen in reversed(self._events) if seen.index == event.index), None)
        if waiting is None:
            self._events.append(event)
        else:
            _merge(waiting, event)
        if event.finish_reason is not None:
            self._close(event.index)

    def hand_over(self) -> None:
        """Has what was put taken, or read if that is the reader's."""
        news, events = self._news, self._events
        if news is None or news.done():
            return
        if self._take is not None:
            try:
                while events and is_between(events[0]):
                    self._take(events.popleft())
            except Exception as error:
                news.set_exception(error)
                return
        if events:
            news.set_result(None)

    def fail(self, error: EngineError) -> None:
        """Ends the stream with an error, after what has already arrived."""
        self._error = error
        self._open.clear()
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _close(self, index: int) -> None:
        self._open.discard(index)
        if not self._open:
            self._forget(self._request_id)
            self._wake()


class StreamTable:
    """All requests of one connection: those that wait to be accepted and those that run; and questions asked."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._streams: dict[str, RequestStream] = {}
        self._answers: dict[str, asyncio.Future[None]] = {}
        # Streams that were given something which was not handed over yet.
        self._fresh: list[RequestStream] = []
        self._op_ids = itertools.count()
        self._descriptions: dict[int, asyncio.Future[ContextInfo]] = {}
        self._kv_maps: dict[int, asyncio.Future[KVMap]] = {}

    async def submit(self, request: GenerateRequest) -> RequestStream:
        """Sends a request and waits for the engine's answer.

        Raises:
            EngineError: What the engine answered, or `EngineStopped` if it went away.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        stream = RequestStream(request, self._send, self._forget)
        self._answers[request.request_id] = answer
        self._streams[request.request_id] = stream
        self._send(Submit(request))
        try:
            await answer
        except BaseException:
            # A refusal, or the caller was cancelled while it waited: the engine may have accepted meanwhile.
            if not answer.done() or answer.cancelled():
                self._send(Abort(request.request_id))
            self._forget(request.request_id)
            raise
        finally:
            self._answers.pop(request.request_id, None)
        return stream

    async def compile(self, constraint: ConstraintSpec) -> None:
        """Has a constraint compiled, and waits until it is.

        Raises:
            EngineError: What the engine answered, or `EngineStopped` if it went away.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request_id = uuid.uuid4().hex
        self._answers[request_id] = answer
        self._send(Compile(request_id, constraint))
        try:
            await answer
        except asyncio.CancelledError:
            self._send(Abort(request_id))
            raise
        finally:
            del self._answers[request_id]

    async def describe_context(self, context_id: str) -> ContextInfo:
        """Asks what a held context holds.

        Raises:
            EngineStopped: The engine went away.
        """
        return await self._asked(self._descriptions, lambda op_id: DescribeContext(op_id, context_id))

    async def describe_kv(self) -> KVMap:
        """Asks who holds the KV pool.

        Raises:
            EngineStopped: The engine went away.
        """
        return await self._asked(self._kv_maps, DescribeKV)

    async def _asked(self, waiting: dict[int, asyncio.Future[T]], question: Callable[[int], Command]) -> T:
        op_id = next(self._op_ids)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting[op_id] = answer
        self._send(question(op_id))
        try:
            return await answer
        finally:
            del waiting[op_id]

    def dispatch(self, frame: Frame) -> None:
        """Sorts a frame's news by whom they concern; what concerns nobody any more is dropped.

        Call `hand_over` when no other frame is there: readers get what came together in one piece.
        """
        for request_id in frame.accepted:
            answer = self._answers.get(request_id)
            if answer is not None and not answer.done():
                answer.set_result(None)
        for refusal in frame.refused:
            answer = self._answers.get(refusal.request_id)
            if answer is not None and not answer.done():
                answer.set_exception(rebuild(refusal.error))
        for described in frame.contexts:
            description = self._descriptions.get(described.op_id)
            if description is not None and not description.done():
                description.set_result(described.info)
        for found in frame.kv_maps:
            awaited = self._kv_maps.get(found.op_id)
            if awaited is not None and not awaited.done():
                awaited.set_result(found.drawn)
        for event in frame.events:
            stream = self._streams.get(event.request_id)
            if stream is not None:
                stream.put(event)
                self._fresh.append(stream)

    def hand_over(self) -> None:
        """Lets readers have what was dispatched."""
        fresh, self._fresh = self._fresh, []
        for stream in fresh:
            stream.hand_over()

    def fail_all(self, message: str) -> None:
        """The engine is gone: ends every stream and every wait with `EngineStopped`."""
        for waits in (self._answers.values(), self._descriptions.values(), self._kv_maps.values()):
            for answer in waits:
                if not answer.done():
                    answer.set_exception(EngineStopped(message))
        for stream in self._streams.values():
            stream.fail(EngineStopped(message))
        self._streams.clear()

    def __len__(self) -> int:
        return len(self._streams)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)


def is_between(event: TokenEvent) -> bool:
    """True if it is neither the first of its sequence nor the last."""
    return event.finish_reason is None and event.num_cached_tokens is None and event.prompt_logprobs is None


def _merge(waiting: TokenEvent, event: TokenEvent) -> None:
    waiting.token_ids += event.token_ids
    waiting.logprobs += event.logprobs
    waiting.finish_reason = event.finish_reason
    waiting.stop_token_id = event.stop_token_id
    waiting.error = event.error
    waiting.proposal = event.proposal
    waiting.distribution = event.distribution
    waiting.further = event.further
    waiting.kv_kib_ms = event.kv_kib_ms
    waiting.num_drafted += event.num_drafted
    waiting.num_accepted += event.num_accepted
    waiting.probes += event.probes
    waiting.rows += event.rows
    waiting.attention += event.attention
    waiting.num_wanted = event.num_wanted
