"""The lines of one batch in flight: each is asked, answered and recorded, some at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.batches.calls import Answer, LocalCalls
from gateway.batches.halt import Halt
from gateway.batches.journal import Journal
from gateway.batches.lines import ROOM_BYTES, Line, LineRequest, read_lines, read_request
from gateway.batches.results import check_body, result_line, usage_of
from gateway.caller import Caller
from gateway.errors import BadRequest, ErrorReply
from gateway.settings import Settings
from gateway.state.batch_records import Batch
from gateway.state.batches import BatchStore
from gateway.state.files import FileStore

log = logging.getLogger(__name__)

MAX_DEATHS = 5
"""Times that the engine may die under a line before the line is given up: it may be the line's fault."""

_LATER = frozenset({429, 499, 503})
"""Statuses of requests that may be answered later."""

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Tools:
    """What all batches of a process are worked on with.

    Attributes:
        settings: How to serve.
        records: The batches.
        files: The files.
        calls: Where lines are asked.
        slots: One for each line that may be in flight.
        resolve: Raises `ModelNotFound` for a name that is not served.
        is_ready: Whether an engine is there.
        to_reply: What a client sees of an error.
    """

    settings: Settings
    records: BatchStore
    files: FileStore
    calls: LocalCalls
    slots: asyncio.Semaphore
    resolve: Callable[[str | None], str]
    is_ready: Callable[[], bool]
    to_reply: Callable[[Exception], ErrorReply]

    @property
    def max_line_bytes(self) -> int:
        """Longest line of an input."""
        return self.settings.max_body_bytes + ROOM_BYTES


class Making:
    """Works on the lines of a batch that are not done yet. At most the bodies in flight and a few more are held.

    Args:
        tools: What to work with.
        batch: Which.
        input_path: Its lines, which have been validated.
        journal: Keeps results.
        halt: When to end early.
    """

    def __init__(self, tools: Tools, batch: Batch, input_path: Path, journal: Journal, halt: Halt) -> None:
        self._tools = tools
        self._batch = batch
        self._input_path = input_path
        self._journal = journal
        self._halt = halt
        self._caller = Caller(batch.owner, tools.settings.batch_priority, batch.fixed.scopes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Returns when all lines are done, or work has to end.

        Raises:
            LeaseLost: Somebody else works on the batch.
            StoreUnavailable: Redis is away for too long.
            OSError: The disk is full, say.
        """
        try:
            async with aclosing(self._undone()) as lines:
                async for line in lines:
                    if not await self._take_slot():
                        break
                    task = asyncio.create_task(self._work(line))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
        finally:
            while self._tasks:
                await asyncio.wait(set(self._tasks))
        if self._failure is not None:
            raise self._failure

    async def _undone(self) -> AsyncGenerator[Line, None]:
        async with aclosing(read_lines(self._input_path, self._tools.max_line_bytes)) as chunks:
            async for lines in chunks:
                places = await self._tools.records.places(self._batch.id, [line.number for line in lines])
                for line, place in zip(lines, places, strict=True):
                    if place is None:
                        yield line

    async def _take_slot(self) -> bool:
        """Waits until one more line may be in flight; False if none may be begun any more."""
        if self._halt.soft.is_set():
            return False
        taking = asyncio.ensure_future(self._tools.slots.acquire())
        stopping = asyncio.ensure_future(self._halt.soft.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            taking.cancel()  # does nothing if it is done
            await asyncio.wait((taking, stopping))
        is_taken = not taking.cancelled()
        if is_taken and self._halt.soft.is_set():
            self._tools.slots.release()
        return is_taken and not self._halt.soft.is_set()

    async def _work(self, line: Line) -> None:
        try:
            request = read_request(line, self._batch.fixed.endpoint)
            answer = await self._ask(request)
            if answer is not None:
                text = result_line(request.custom_id, answer)
                await self._journal.add(line.number, text, is_ok=answer.status == 200, usage=usage_of(answer))
        except Exception as error:
            self._failure = self._failure or error
            self._halt.ask("lost")
        finally:
            self._tools.slots.release()

    async def _ask(self, request: LineRequest) -> Answer | None:
        """The answer to a line; None if work had to end before there was one."""
        try:
            check_body(request.body)
        except BadRequest as error:
            reply = self._tools.to_reply(error)
            return Answer(reply.status, "", bytearray(msgspec.json.encode(reply.body)))
        pause_s, num_deaths = _FIRST_PAUSE_S, 0
        while await self._engine_is_ready():
            answer = await self._tools.calls.post(
                self._batch.fixed.endpoint, request.body, self._caller, self._halt.hard
            )
            if answer.status not in _LATER:
                return answer
            num_deaths += _is_death(answer)
            if num_deaths >= MAX_DEATHS:
                log.warning("%s: giving a line up, the engine died %d times under it", self._batch.id, num_deaths)
                return answer
            if await self._halt.pause(pause_s):
                return None
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        return None

    async def _engine_is_ready(self) -> bool:
        """Waits for an engine: one that is not there has not died under the line. False if work has to end first."""
        while not self._halt.soft.is_set():
            if self._tools.is_ready():
                return True
            await self._halt.pause(_POLL_S)
        return False


def _is_death(answer: Answer) -> bool:
    try:
        code: object = msgspec.json.decode(answer.body)["error"]["code"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return False
    return code == "engine_stopped"
