"""One detached run at work: its events go to the store as they come, then how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from engine.errors import EngineStopped
from extensions.errors import ScriptCrashed
from extensions.programs.request import ProgramOutcome, RunEvent
from extensions.programs.run import ProgramRun
from gateway.errors import ErrorReply, StoreUnavailable
from gateway.programs.work import ProgramWork, usage_body
from gateway.runs.attached import Attached
from gateway.runs.events import ENDS, STARTED
from gateway.runs.journal import RunJournal
from gateway.runs.outbox import Outbox
from gateway.sse import close_shielded
from gateway.state.run_store import NO_PART, RunStore, Status, Told
from gateway.tenancy.payer import Payer

log = logging.getLogger(__name__)

FLUSH_S = 0.05
"""Events are stored at most so often."""

RETRY_S = 0.25
"""Seconds between tries to reach a store that is away."""

SETTLE_S = 60.0
"""How long the end of a run waits for a store that is away; then others see that nobody works on it."""

MAX_LIVES = 3
"""A run is gone on with so often."""

BACKOFF_S = (0.1, 1.0, 5.0)
"""Seconds before it is, by how often it was."""

INTERRUPTED = {
    "message": "The server process that ran the program ended before it was done.",
    "type": "server_error",
    "param": None,
    "code": "run_interrupted",
}
"""Error of a run whose worker is gone."""

End = Literal["cancelled", "interrupted", "lost"]

Revive = Callable[[str, RunJournal, Payer], Awaitable[ProgramRun]]
"""Has a run begin again from its journal."""


class Making:
    """Works on a run until it ends. However that is, the work has ended and is closed before `make` returns.

    Args:
        store: Keeps it.
        run_id: Which.
        token: With which it is written.
        work: The program.
        to_reply: What a client sees of an error.
        outbox: What it has given out before; nothing if left out.
        journal: Of the run; None if nobody can go on with it.
        revive: Has it begin again when its process or the engine has died.
    """

    def __init__(
        self,
        store: RunStore,
        run_id: str,
        token: str,
        work: ProgramWork,
        to_reply: Callable[[Exception], ErrorReply],
        *,
        outbox: Outbox | None = None,
        journal: RunJournal | None = None,
        revive: Revive | None = None,
    ) -> None:
        self.run_id = run_id
        self.token = token
        self._store = store
        self._work = work
        self._to_reply = to_reply
        self._journal = journal
        self._revive = revive
        self._attached: Attached | None = None
        self._out = outbox or Outbox()
        self._news = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ending = asyncio.Event()
        self._end: End | None = None
        self._is_read = False
        if outbox is None:
            self._out.add(STARTED)
        if journal is not None:
            journal.on_news, journal.on_wait = self._news.set, self._wanted
        self._news.set()

    def _wanted(self) -> None:
        self._news.set()
        self._hurry.set()

    def attach(self) -> Attached:
        """Lets the request that has started the run read it too; before `make`."""
        self._attached = Attached(self._work.run)
        return self._attached

    async def end(self, how: End) -> None:
        """Ends the program early, unless it has ended; `make` writes that down."""
        if self._end is None and not self._is_read:
            self._end = how
        self._ending.set()
        await close_shielded(self._work)

    async def make(self) -> None:
        """Reads the run to its end and keeps all of it."""
        flushing = asyncio.create_task(self._flush())
        error: Exception | None = None
        try:
            while True:
                error = await self._read()
                if error is None or not await self._goes_on_after(error):
                    break
        finally:
            await close_shielded(self._work)
            self._is_read = True
            self._news.set()
            self._hurry.set()
            await asyncio.wait([flushing])
            if self._attached is not None:
                self._attached.end(error)
        if self._end != "lost":
            await self._settle(error)

    async def _read(self) -> Exception | None:
        try:
            async for one in self._work.run:
                fresh = self._out.fresh(one)
                if fresh is not None:
                    self._take(fresh)
        except Exception as error:
            return error
        return None

    # -- going on after a crash -------------------------------------------------------------------------------------

    async def _goes_on_after(self, error: Exception) -> bool:
        """Has the run begin again, if its process or the engine has died under it; false if it cannot."""
        journal, revive = self._journal, self._revive
        if journal is None or revive is None or not isinstance(error, ScriptCrashed | EngineStopped):
            return False
        try:
            await close_shielded(self._work.run)
            if self._end is not None or journal.fixed:
                return False
            await journal.commit()
            num_lives = await self._store.go_on(self.run_id, self.token, MAX_LIVES, is_own=True)
            if not num_lives or await self._has_ended_within(BACKOFF_S[min(num_lives, len(BACKOFF_S)) - 1]):
                return False
            run = await self._revived(revive(self.run_id, journal, self._work.payer))
            if run is None:
                return False
        except Exception as reason:
            log.warning("run %s does not go on after %s: %s", self.run_id, type(error).__name__, reason)
            return False
        log.warning("run %s goes on after %s", self.run_id, type(error).__name__)
        self._work.run = run
        if self._attached is not None:
            self._attached.follow(run)
        self._out.begin_again()
        if self._end is not None:
            await close_shielded(self._work)
        return True

    async def _revived(self, reviving: Awaitable[ProgramRun]) -> ProgramRun | None:
        """Waits for a run that begins again; None if somebody ends it before."""
        begun, ended = asyncio.ensure_future(reviving), asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({begun, ended}, return_when=asyncio.FIRST_COMPLETED)
            return await begun if begun.done() else None
        finally:
            for task in (begun, ended):
                task.cancel()
            await asyncio.gather(begun, ended, return_exceptions=True)

    async def _has_ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return self._ending.is_set()

    # -- events -----------------------------------------------------------------------------------------------------

    def _take(self, one: RunEvent) -> None:
        if self._attached is not None:
            self._attached.tell(one)
        self._out.take(one)
        self._news.set()

    async def _flush(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._is_read or self._end == "lost":
                return
            self._hurry.clear()
            self._out.join_texts()
            wait_s = FLUSH_S
            try:
                await self._tell_some()
            except StoreUnavailable as error:
                log.warning("run %s goes on without its store: %s", self.run_id, error)
                wait_s = RETRY_S
                self._hurry.clear()
            if self._out.num_untold or (self._journal is not None and self._journal.has_news):
                self._news.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()

    async def _tell_some(self) -> None:
        """Sends the oldest events, with all that led to them; has the program end if nobody wants them any more."""
        is_again = self._journal is not None and self._journal.is_sending
        # What failed to arrive is sent again as it was, without events: newer ones need the rest of the journal.
        told, count = (Told(events=(), last=-1), 0) if is_again else self._out.oldest()
        part = NO_PART if self._journal is None else self._journal.take()
        if not count and part == NO_PART:
            return
        if await self._store.append(self.run_id, self.token, told, part):
            self._note_stored(count)
        else:
            log.info("run %s is ended: it was deleted, or given up", self.run_id)
            await self.end("lost")

    def _note_stored(self, count: int) -> None:
        self._out.note_stored(count)
        if self._journal is not None:
            self._journal.note_stored()

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _settle(self, error: Exception | None) -> None:
        """Writes down how it ended; waits for a store that is away."""
        self._out.join_texts()
        status, answer, problem = self._ended(error)
        self._out.add(ENDS[status])
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
            told, count = self._out.oldest()
            if count < self._out.num_untold:
                if not await self._store.append(self.run_id, self.token, told):
                    return
                self._out.note_stored(count)
                continue
            await self._store.settle(self.run_id, self.token, told, status, answer, problem)
            return

    def _ended(self, error: Exception | None) -> tuple[Status, dict[str, Any], dict[str, Any] | None]:
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
