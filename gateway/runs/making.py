"""One detached run at work: its events go to the store as they come, then how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from extensions.programs.request import EventEmitted, LogWritten, ProgramOutcome, RunEvent, TextEmitted
from gateway.errors import ErrorReply, StoreUnavailable
from gateway.programs.work import ProgramWork, usage_body
from gateway.runs.attached import Attached
from gateway.runs.events import ENDS, EVENT, LOG, STARTED, TEXT, event
from gateway.sse import close_shielded
from gateway.state.run_store import RunStore, Status, Told

log = logging.getLogger(__name__)

FLUSH_S = 0.05
"""Events are stored at most so often."""

RETRY_S = 0.25
"""Seconds between tries to reach a store that is away."""

SETTLE_S = 60.0
"""How long the end of a run waits for a store that is away; then others see that nobody works on it."""

MAX_TOLD_BYTES = 256 * 2**10
"""Events that are sent to the store at once, unless one alone is larger."""

INTERRUPTED = {
    "message": "The server process that ran the program ended before it was done.",
    "type": "server_error",
    "param": None,
    "code": "run_interrupted",
}
"""Error of a run whose worker is gone."""

End = Literal["cancelled", "interrupted", "lost"]


class Making:
    """Works on a run until it ends. However that is, the work has ended and is closed before `make` returns.

    Args:
        store: Keeps it.
        run_id: Which.
        token: With which it is written.
        work: The program.
        to_reply: What a client sees of an error.
    """

    def __init__(
        self, store: RunStore, run_id: str, token: str, work: ProgramWork, to_reply: Callable[[Exception], ErrorReply]
    ) -> None:
        self.run_id = run_id
        self.token = token
        self._store = store
        self._work = work
        self._to_reply = to_reply
        self._attached: Attached | None = None
        self._texts: list[str] = []
        self._untold: list[bytes] = []
        self._number = 0
        self._news = asyncio.Event()
        self._end: End | None = None
        self._is_read = False
        self._add(STARTED)

    def attach(self) -> Attached:
        """Lets the request that has started the run read it too; before `make`."""
        self._attached = Attached(self._work.run)
        return self._attached

    async def end(self, how: End) -> None:
        """Ends the program early, unless it has ended; `make` writes that down."""
        if self._end is None and not self._is_read:
            self._end = how
        await close_shielded(self._work)

    async def make(self) -> None:
        """Reads the run to its end and keeps all of it."""
        flushing = asyncio.create_task(self._flush())
        error: Exception | None = None
        try:
            async for one in self._work.run:
                self._take(one)
        except Exception as raised:
            error = raised
        finally:
            await close_shielded(self._work)
            self._is_read = True
            self._news.set()
            await asyncio.wait([flushing])
            if self._attached is not None:
                self._attached.end(error)
        if self._end != "lost":
            await self._settle(error)

    # -- events -----------------------------------------------------------------------------------------------------

    def _take(self, one: RunEvent) -> None:
        if self._attached is not None:
            self._attached.tell(one)
        match one:
            case TextEmitted(text):
                self._texts.append(text)
                self._news.set()
            case EventEmitted(kind, data):
                self._add(EVENT, event={"type": kind, "data": data})
            case LogWritten(text):
                self._add(LOG, log=text)

    def _add(self, kind: str, **fields: Any) -> None:
        self._join_texts()
        self._untold.append(event(kind, self._number, **fields))
        self._number += 1
        self._news.set()

    def _join_texts(self) -> None:
        """What was emitted between two looks is one event."""
        if self._texts:
            self._untold.append(event(TEXT, self._number, delta="".join(self._texts)))
            self._number += 1
            self._texts.clear()

    async def _flush(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_read or self._end == "lost":
                return
            self._join_texts()
            wait_s = FLUSH_S
            try:
                await self._tell_some()
            except StoreUnavailable as error:
                log.warning("run %s goes on without its store: %s", self.run_id, error)
                wait_s = RETRY_S
            if self._untold:
                self._news.set()
            await asyncio.sleep(wait_s)

    async def _tell_some(self) -> None:
        """Sends the oldest events; has the program end if nobody wants them any more."""
        told, count = self._oldest()
        if not count:
            return
        if await self._store.append(self.run_id, self.token, told):
            del self._untold[:count]
        else:
            log.info("run %s is ended: it was deleted, or given up", self.run_id)
            await self.end("lost")

    def _oldest(self) -> tuple[Told, int]:
        count = size = 0
        for one in self._untold:
            if count and size + len(one) > MAX_TOLD_BYTES:
                break
            count, size = count + 1, size + len(one) + 1
        last = self._number - len(self._untold) + count - 1
        return Told(events=self._untold[:count], last=last), count

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _settle(self, error: Exception | None) -> None:
        """Writes down how it ended; waits for a store that is away."""
        self._join_texts()
        status, answer, problem = self._ending(error)
        self._add(ENDS[status])
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            try:
                await self._tell_last(status, answer, problem)
                return
            except StoreUnavailable as away:
                if time.monotonic() > deadline_s:
                    log.warning("the end of run %s could not be stored: %s", self.run_id, away)
                    return
            await asyncio.sleep(RETRY_S)

    async def _tell_last(self, status: Status, answer: dict[str, Any], problem: dict[str, Any] | None) -> None:
        while True:
            told, count = self._oldest()
            if count < len(self._untold):
                if not await self._store.append(self.run_id, self.token, told):
                    return
                del self._untold[:count]
                continue
            await self._store.settle(self.run_id, self.token, told, status, answer, problem)
            return

    def _ending(self, error: Exception | None) -> tuple[Status, dict[str, Any], dict[str, Any] | None]:
        run = self._work.run
        if error is None:
            return "completed", _answer(run.outcome), None
        answer = {"usage": usage_body(run.usage), "logs": run.logs}
        if self._end == "cancelled":
            return "cancelled", answer, None
        if self._end == "interrupted":
            return "failed", answer, INTERRUPTED
        reply = self._to_reply(error)
        if reply.status == 500:
            log.error("run %s failed", self.run_id, exc_info=error)
        return "failed", answer, reply.body["error"]


def _answer(outcome: ProgramOutcome) -> dict[str, Any]:
    return {
        "content": outcome.content,
        "message": None if outcome.message is None else dict(outcome.message),
        "result": outcome.result,
        "finish_reason": outcome.finish_reason,
        "exec_path": outcome.exec_path,
        "exec_reason": outcome.exec_reason or None,
        "usage": usage_body(outcome.usage),
        "logs": outcome.logs,
    }
