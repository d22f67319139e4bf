"""One detached run at work: its events go to the store as they come, then how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from engine.errors import EngineStopped
from extensions.errors import RunCancelled, ScriptCrashed
from extensions.programs.request import RunEvent
from extensions.programs.run import ProgramRun
from gateway.errors import ErrorReply, NotReady
from gateway.programs.work import ProgramWork
from gateway.runs.attached import Attached
from gateway.runs.endings import NO_JOURNAL, Ending, completed, interrupted, stopped
from gateway.runs.events import STARTED
from gateway.runs.journal import RunJournal
from gateway.runs.outbox import Outbox
from gateway.runs.telling import Teller
from gateway.sse import close_shielded
from gateway.state.run_store import RunStore
from gateway.state.tasks import end_task
from gateway.tenancy.payer import Payer

log = logging.getLogger(__name__)

MAX_LIVES = 3
"""A run is gone on with so often after a crash."""

BACKOFF_S = (0.1, 1.0, 5.0)
"""Seconds before it is, by how often it was."""

CALM_S = 0.5
"""Seconds that effects under way get to end where a stop waits for them no more."""

End = Literal["cancelled", "interrupted", "lost", "handed_over"]

_CUT_OFF = (RunCancelled, ScriptCrashed, EngineStopped)
"""Errors of a run that has not come to an end by itself."""

GOES_ON = "The server is shutting down. The run goes on, and its events can be read."
"""What those are told who read a run that has been handed over."""

Revive = Callable[[str, RunJournal, Payer], Coroutine[Any, Any, ProgramRun]]
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
        if outbox is None:
            self._out.add(STARTED)
        self._teller = Teller(store, run_id, token, self._out, journal)
        self._ending = asyncio.Event()
        self._end: End | None = None
        self._is_read = False

    def attach(self) -> Attached:
        """Lets the request that has started the run read it too; before `make`."""
        self._attached = Attached(self._work.run)
        return self._attached

    @property
    def not_resumable(self) -> str:
        """Why nobody else can go on with it; empty if somebody can."""
        return NO_JOURNAL if self._journal is None else self._journal.fixed

    async def end(self, how: End) -> None:
        """Ends the program early, unless it has ended; `make` writes that down."""
        if self._end is None and not self._is_read:
            self._end = how
        self._ending.set()
        # What another worker goes on with is paid there.
        await close_shielded(self._work.run if self._end == "handed_over" else self._work)

    async def hand_over(self) -> None:
        """Leaves the program to another worker, if one can go on with it: once its request has left, and no effect is
        under way. None begins from now on."""
        if self._attached is not None:
            await self._attached.closed()
        if self.not_resumable:
            return
        await self._calm(None)
        await self.end("handed_over")

    async def stop(self) -> None:
        """Leaves the program to another worker as it is, or ends it if none can go on with it."""
        if not self.not_resumable:
            await self._calm(CALM_S)
        await self.end("interrupted" if self.not_resumable else "handed_over")

    async def _calm(self, timeout_s: float | None) -> None:
        """Waits until no effect is under way, for so long at most; none begins any more."""
        assert self._journal is not None
        gate = self._journal.gate
        gate.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await gate.calm()

    async def make(self) -> None:
        """Reads the run to its end and keeps all of it."""
        telling = asyncio.create_task(self._teller.work(self._lose))
        error: Exception | None = None
        try:
            while True:
                error = await self._read()
                if error is None or not await self._goes_on_after(error):
                    break
        finally:
            await close_shielded(self._work.run)
            self._is_read = True
            self._teller.finish()
            await asyncio.wait([telling])
            is_handed_over = await self._is_handed_over_after(error)
            await close_shielded(self._work)
            if self._attached is not None:
                self._attached.end(NotReady(GOES_ON) if is_handed_over else error)
        if not is_handed_over and self._end != "lost":
            await self._teller.settle(self._ended(error))

    async def _is_handed_over_after(self, error: Exception | None) -> bool:
        """Tells others to go on, if that is how it was to end and has ended."""
        if self._end != "handed_over" or not isinstance(error, _CUT_OFF):
            return False
        if not await self._teller.hand_over():
            self._end = "interrupted"
            return False
        self._work.payer.pass_on()
        log.info("run %s is handed over", self.run_id)
        return True

    async def _lose(self) -> None:
        await self.end("lost")

    async def _read(self) -> Exception | None:
        try:
            async for one in self._work.run:
                # What comes from here on may be ahead of the journal; whoever goes on gives it out.
                if self._end != "handed_over" and (fresh := self._out.fresh(one)) is not None:
                    self._take(fresh)
        except Exception as error:
            return error
        return None

    def _take(self, one: RunEvent) -> None:
        if self._attached is not None:
            self._attached.tell(one)
        self._out.take(one)
        self._teller.wake()

    def _ended(self, error: Exception | None) -> Ending:
        run = self._work.run
        if error is None:
            return completed(run.outcome)
        if self._end == "cancelled":
            return stopped(run, None)
        if self._end == "interrupted":
            return stopped(run, interrupted(self.not_resumable))
        reply = self._to_reply(error)
        if reply.status == 500:
            log.error("run %s failed", self.run_id, exc_info=error)
        return stopped(run, reply.body["error"])

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
            await close_shielded(self._work.run)
        return True

    async def _revived(self, reviving: Coroutine[Any, Any, ProgramRun]) -> ProgramRun | None:
        """Waits for a run that begins again; None if somebody ends it before."""
        begun, ended = asyncio.create_task(reviving), asyncio.create_task(self._ending.wait())
        has_begun = False
        try:
            await asyncio.wait({begun, ended}, return_when=asyncio.FIRST_COMPLETED)
            has_begun = begun.done()
        finally:
            await end_task(ended)
            if not has_begun:
                await end_task(begun)
                if not begun.cancelled() and begun.exception() is None:
                    await close_shielded(begun.result())
        return await begun if has_begun else None

    async def _has_ended_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        return self._ending.is_set()
