"""Looks for runs that nobody works on: gone on with here, left to those that can, or given up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable

from gateway.errors import ErrorReply, NotReady, StoreUnavailable
from gateway.lifecycle import Lifecycle
from gateway.programs.work import ProgramWork
from gateway.runs.endings import NO_JOURNAL, Ending, interrupted
from gateway.runs.events import ENDS, STARTED, event
from gateway.runs.journal import RunJournal
from gateway.runs.making import MAX_LIVES
from gateway.runs.outbox import Outbox
from gateway.runs.reviving import Reviver
from gateway.state.run_store import RunRecord, RunStore, Told
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between looks for runs that nobody works on."""

FOREIGN_S = 120.0
"""A run whose model is not served here is left for so long to those that serve it ..."""

FOREIGN_LEFT_S = 900.0
"""... or for so long if it was handed over: the server that did it may be on its way back."""

GRACE_S = 3.0
"""A run must have been without a worker for so long, with the store there all the time: a store that comes back after
a while knows nothing yet of who is alive. One that was handed over need not."""

KEEP_S = 0.5
"""Seconds between signs of life of a run that is about to begin again."""

GoOn = Callable[[str, str, ProgramWork, RunJournal, Outbox], None]
"""Takes a run that has begun again: its id, the token with which it is written, the work, its journal and what it gives
out."""


class Watch:
    """Looks again and again. Belongs to one event loop.

    Args:
        store: Keeps runs.
        lifecycle: Of the process; while it drains, runs are left to others.
        reviver: Begins runs again; None to let them fail.
        go_on: Takes those that have.
        to_reply: What a client sees of an error.
    """

    def __init__(
        self,
        store: RunStore,
        lifecycle: Lifecycle,
        reviver: Reviver | None,
        go_on: GoOn,
        to_reply: Callable[[Exception], ErrorReply],
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._reviver = reviver
        self._go_on_with = go_on
        self._to_reply = to_reply
        self._since: dict[str, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._taking_over: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._is_closed = False

    def start(self) -> None:
        """Begins to look. Idempotent."""
        if not self._is_closed and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look_always())

    def begin_drain(self) -> None:
        """Leaves all of them to others from now on. Idempotent."""
        self._is_draining = True

    async def aclose(self) -> None:
        """Looks no more; runs that are about to begin again are left to others. Idempotent."""
        self._is_closed = True
        await end_task(self._looking)
        for task in list(self._taking_over):
            await end_task(task)

    async def _look_always(self) -> None:
        is_away = False
        while True:
            try:
                await self._look()
                is_away = False
            except StoreUnavailable as error:
                if not is_away:
                    log.warning("runs cannot be looked after: %s", error)
                self._since, is_away = {}, True
            except Exception:
                log.exception("looking after runs failed")
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        overdue = await self._store.overdue()
        now_s = time.monotonic()
        self._since = {run_id: self._since.get(run_id, now_s) for run_id in overdue}
        for run_id, is_left in overdue.items():
            overdue_s = now_s - self._since[run_id]
            if (is_left or overdue_s >= GRACE_S) and not await self._take_over(run_id, overdue_s):
                await self._give_up(run_id)

    async def _take_over(self, run_id: str, overdue_s: float) -> bool:
        """Goes on with a run whose process is gone, or leaves it to others that can; false if nobody can."""
        reviver, record = self._reviver, await self._store.find(run_id)
        if reviver is None or record is None or not record.is_resumable or record.is_unwanted:
            return False
        if self._is_draining or self._lifecycle.is_draining or not reviver.is_ready:
            return True  # it is not for this process to say
        if await reviver.is_foreign(run_id):
            return overdue_s < (FOREIGN_LEFT_S if record.is_left else FOREIGN_S)
        token = uuid.uuid4().hex
        if not await self._store.go_on(run_id, token, MAX_LIVES, is_own=False):
            return False
        task = asyncio.create_task(self._go_on(reviver, run_id, token))
        self._taking_over.add(task)
        task.add_done_callback(self._taking_over.discard)
        return True

    async def _go_on(self, reviver: Reviver, run_id: str, token: str) -> None:
        keeping = asyncio.create_task(self._keep(run_id, token))
        try:
            # Read now that nobody else can write.
            record = await self._store.find(run_id)
            if record is not None:
                await self._begin_again(reviver, record, token)
        except NotReady:
            with contextlib.suppress(StoreUnavailable):
                await self._store.hand_over(run_id, token)
        except StoreUnavailable as error:
            log.warning("run %s cannot go on now: %s", run_id, error)
        finally:
            await end_task(keeping)

    async def _begin_again(self, reviver: Reviver, record: RunRecord, token: str) -> None:
        most, run_id = self._store.bounds.journal_bytes, record.id
        journal = RunJournal(run_id, most, num_bytes=record.journal_bytes, num_parts=record.parts)
        outbox = Outbox(record.last + 1, await self._store.marks(run_id))
        if record.last < 0:
            outbox.add(STARTED)
        self._lifecycle.enter()
        try:
            work = await reviver.take_over(record, journal)
        except BaseException as error:
            self._lifecycle.leave()
            if not isinstance(error, Exception) or isinstance(error, StoreUnavailable):
                raise
            log.warning("run %s cannot go on here: %s", run_id, error)
            await self._fail(record, token, error)
            return
        log.warning("run %s goes on here: its worker is gone or was stopped", run_id)
        self._go_on_with(run_id, token, work, journal, outbox)

    async def _keep(self, run_id: str, token: str) -> None:
        """Gives signs of life of a run that is about to begin again."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self._store.beat([(run_id, token)])
            await asyncio.sleep(KEEP_S)

    async def _fail(self, record: RunRecord, token: str, error: Exception) -> None:
        number = record.last + 1
        told = Told(events=[event(ENDS["failed"], number)], last=number)
        with contextlib.suppress(StoreUnavailable):
            problem = self._to_reply(error).body["error"]
            await self._store.settle(record.id, token, told, "failed", {}, problem)

    async def _give_up(self, run_id: str) -> None:
        record = await self._store.find(run_id)
        number = 0 if record is None else record.last + 1
        ending = _given_up(record)
        told = Told(events=[event(ENDS[ending.status], number)], last=number)
        if await self._store.give_up(run_id, told, ending.status, ending.error):
            log.warning("run %s has %s: its worker is gone", run_id, ending.status)


def _given_up(record: RunRecord | None) -> Ending:
    if record is not None and record.is_unwanted:
        return Ending(status="cancelled")
    reason = "" if record is None else record.fixed
    if record is not None and not record.journal_bytes:
        reason = reason or NO_JOURNAL
    return Ending(status="failed", error=interrupted(reason))
