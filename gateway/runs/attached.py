"""A detached run, read by the request that has started it: when that goes away, the run goes on."""

from __future__ import annotations

import asyncio
from collections import deque

from extensions.programs.program import Program
from extensions.programs.request import ProgramOutcome, ProgramRequest, ProgramUsage, RunEvent
from gateway.errors import OF_RUN
from gateway.programs.work import ReadableRun


class Attached:
    """Events of a run as they come; what waits here is bounded by what a run may emit.

    Args:
        run: The run; somebody else reads it.
    """

    def __init__(self, run: ReadableRun) -> None:
        self._run = run
        self._waiting: deque[RunEvent] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._is_over = False
        self._closed = asyncio.Event()

    @property
    def program(self) -> Program:
        """What runs."""
        return self._run.program

    @property
    def request(self) -> ProgramRequest:
        """What it answers."""
        return self._run.request

    @property
    def usage(self) -> ProgramUsage:
        """What it used up to now."""
        return self._run.usage

    @property
    def logs(self) -> str:
        """What it printed up to now."""
        return self._run.logs

    @property
    def outcome(self) -> ProgramOutcome:
        """What came of it, once the iteration has ended."""
        return self._run.outcome

    def follow(self, run: ReadableRun) -> None:
        """The run has begun again; what was told before is not told once more."""
        self._run = run

    def tell(self, event: RunEvent) -> None:
        """There is an event."""
        if not self._closed.is_set():
            self._waiting.append(event)
            self._changed.set()

    def end(self, error: Exception | None) -> None:
        """The run has ended, or failed."""
        self._error, self._is_over = error, True
        self._changed.set()

    def __aiter__(self) -> Attached:
        return self

    async def __anext__(self) -> RunEvent:
        """Waits for the next event; raises what the run raises."""
        while not self._waiting:
            if self._is_over:
                if self._error is not None:
                    setattr(self._error, OF_RUN, self.request.id)
                    raise self._error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        """Reads no more; the run goes on. Idempotent."""
        self._closed.set()
        self._waiting.clear()

    async def closed(self) -> None:
        """Waits until the request reads no more."""
        await self._closed.wait()
