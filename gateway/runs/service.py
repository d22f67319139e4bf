"""Detached runs of one worker: begun, kept alive, ended; and those of workers that are gone, given up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from extensions.programs.run import ProgramRun
from gateway.errors import ErrorReply, NotReady, StoreUnavailable
from gateway.lifecycle import Lifecycle
from gateway.programs.work import ProgramWork
from gateway.runs.events import ENDS, STARTED, event
from gateway.runs.inbox import RunInbox
from gateway.runs.journal import RunJournal
from gateway.runs.making import INTERRUPTED, MAX_LIVES, End, Making
from gateway.runs.outbox import Outbox
from gateway.runs.reviving import Reviver
from gateway.sse import close_shielded
from gateway.state.bells import Bells
from gateway.state.run_store import RunRecord, RunStore, Told
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

BEAT_S = 0.5
"""Seconds between signs of life; a run that another worker was asked to cancel ends so much later."""

LOOK_S = 1.0
"""Seconds between looks for runs that nobody works on."""

FOREIGN_S = 120.0
"""A run whose model is not served here is left for so long to those that serve it."""

GRACE_S = 3.0
"""A run must have been without a worker for so long, with the store there all the time: a store that comes back after
a while knows nothing yet of who is alive."""


class DetachedRuns:
    """They count as requests in flight: a drain waits for them as for any other. Belongs to one event loop.

    Args:
        store: Keeps them; closed at the end.
        bells: Ring for their input.
        lifecycle: Counts them.
        to_reply: What a client sees of an error.
        reviver: Begins runs again whose process or engine has died; None to let them fail.

    Attributes:
        store: See above.
    """

    def __init__(
        self,
        store: RunStore,
        bells: Bells,
        lifecycle: Lifecycle,
        to_reply: Callable[[Exception], ErrorReply],
        reviver: Reviver | None = None,
    ) -> None:
        self.store = store
        self._reviver = reviver
        self._bells = bells
        self._lifecycle = lifecycle
        self._to_reply = to_reply
        self._makings: dict[str, Making] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking_over: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def num_running(self) -> int:
        """Those that have not ended here."""
        return len(self._makings)

    def inbox(self, run_id: str) -> RunInbox:
        """What clients say to a run that is about to begin."""
        return RunInbox(self.store, self._bells, run_id)

    def sink(self, run_id: str) -> RunJournal | None:
        """Where the journal of a run is written that is about to begin; None if none is kept."""
        if self._reviver is None or not self.store.bounds.journal_bytes:
            return None
        return RunJournal(run_id, self.store.bounds.journal_bytes)

    async def start(
        self,
        work: ProgramWork,
        owner: str,
        head: dict[str, Any],
        *,
        attach: bool = False,
        journal: RunJournal | None = None,
    ) -> ProgramWork:
        """Keeps a program that has begun, and goes on with it whoever is there to read; closes it where that cannot be.

        Args:
            work: The program; its id is that of the run.
            owner: Whose it is.
            head: What is known of it.
            attach: The request reads it too.
            journal: Where it is written down; what `sink` returned for it.

        Returns:
            What to read: with `attach` a reader of its own, which may be closed without ending the run.

        Raises:
            NotReady: The process is draining, or the owner has too many runs.
            StoreUnavailable: Redis did not answer.
        """
        run_id, token = work.run.request.id, uuid.uuid4().hex
        try:
            self._lifecycle.enter()
        except BaseException:
            await close_shielded(work)
            raise
        try:
            origin = self._origin(work, journal)
            if not await self.store.create(run_id, owner, token, head, origin):
                most = self.store.bounds.runs
                raise NotReady(f"You have {most} runs that have not ended. Try again later.")
        except BaseException:
            self._lifecycle.leave()
            await close_shielded(work)
            raise
        making = self._making(run_id, token, work, journal)
        reader = ProgramWork(making.attach()) if attach else work
        self._begin(making)
        self.watch()
        return reader

    def _origin(self, work: ProgramWork, journal: RunJournal | None) -> bytes:
        if journal is None or self._reviver is None or not isinstance(work.run, ProgramRun):
            return b""
        origin = self._reviver.origin(work.run, work.payer)
        if not origin or len(origin) > self.store.bounds.journal_bytes:
            journal.fixed = "what it was begun with cannot be kept"
            return b""
        return origin

    def _making(
        self, run_id: str, token: str, work: ProgramWork, journal: RunJournal | None, outbox: Outbox | None = None
    ) -> Making:
        revive = None if self._reviver is None else self._reviver.run
        return Making(self.store, run_id, token, work, self._to_reply, outbox=outbox, journal=journal, revive=revive)

    def _begin(self, making: Making) -> None:
        self._makings[making.run_id] = making
        task = asyncio.create_task(self._make(making))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    async def cancel(self, run_id: str) -> bool:
        """Ends a run that is worked on here; false if it is not."""
        making = self._makings.get(run_id)
        if making is None:
            return False
        await making.end("cancelled")
        return True

    def watch(self) -> None:
        """Begins to look for runs that nobody works on. Idempotent."""
        if not self._is_closed and (self._watching is None or self._watching.done()):
            self._watching = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        """Ends all of them, and closes the store. Idempotent."""
        self._is_closed = True
        await end_task(self._watching)
        for task in list(self._taking_over):
            await end_task(task)  # others go on with these
        await asyncio.gather(*(making.end("interrupted") for making in list(self._makings.values())))
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await end_task(self._beating)
        await self.store.aclose()

    # -- in the background ------------------------------------------------------------------------------------------

    async def _make(self, making: Making) -> None:
        try:
            await making.make()
        except Exception:
            log.exception("run %s could not be kept", making.run_id)
        finally:
            del self._makings[making.run_id]
            self._lifecycle.leave()

    async def _beat(self) -> None:
        while self._makings:
            makings = list(self._makings.values())
            try:
                told = await self.store.beat([(making.run_id, making.token) for making in makings])
                ends: dict[int, End] = {0: "lost", 2: "cancelled"}
                wanted = [(making, ends[one]) for making, one in zip(makings, told, strict=True) if one in ends]
                await asyncio.gather(*(self._end(making, how) for making, how in wanted))
            except StoreUnavailable as error:
                log.warning("no sign of life of runs could be given: %s", error)
            except Exception:
                log.exception("giving signs of life of runs failed")
            await asyncio.sleep(BEAT_S)

    async def _end(self, making: Making, how: End) -> None:
        # One that has just written down its end is no longer there to be kept alive.
        if self._makings.get(making.run_id) is making:
            await making.end(how)

    async def _watch(self) -> None:
        since: dict[str, float] = {}
        is_away = False
        while True:
            try:
                overdue = await self.store.overdue()
                now_s = time.monotonic()
                since = {run_id: since.get(run_id, now_s) for run_id in overdue}
                is_away = False
                for run_id in [one for one, seen_s in since.items() if now_s - seen_s >= GRACE_S]:
                    if not await self._take_over(run_id, now_s - since[run_id]):
                        await self._give_up(run_id)
            except StoreUnavailable as error:
                if not is_away:
                    log.warning("runs cannot be looked after: %s", error)
                since, is_away = {}, True
            except Exception:
                log.exception("looking after runs failed")
            await asyncio.sleep(LOOK_S)

    async def _take_over(self, run_id: str, overdue_s: float) -> bool:
        """Goes on with a run whose process is gone, or leaves it to others that can; false if nobody can."""
        reviver, record = self._reviver, await self.store.find(run_id)
        if reviver is None or record is None or not record.is_resumable:
            return False
        if self._lifecycle.is_draining or await reviver.is_foreign(run_id):
            return overdue_s < FOREIGN_S
        token = uuid.uuid4().hex
        if not await self.store.go_on(run_id, token, MAX_LIVES, is_own=False):
            return False
        task = asyncio.create_task(self._go_on(reviver, run_id, token))
        self._taking_over.add(task)
        task.add_done_callback(self._taking_over.discard)
        return True

    async def _go_on(self, reviver: Reviver, run_id: str, token: str) -> None:
        keeping = asyncio.create_task(self._keep(run_id, token))
        try:
            # Read now that nobody else can write.
            record = await self.store.find(run_id)
            if record is not None:
                await self._begin_again(reviver, record, token)
        except (StoreUnavailable, NotReady) as error:
            log.warning("run %s cannot go on now: %s", run_id, error)
        finally:
            await end_task(keeping)

    async def _begin_again(self, reviver: Reviver, record: RunRecord, token: str) -> None:
        most, run_id = self.store.bounds.journal_bytes, record.id
        journal = RunJournal(run_id, most, num_bytes=record.journal_bytes, num_parts=record.parts)
        outbox = Outbox(record.last + 1, await self.store.marks(run_id))
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
        log.warning("run %s goes on: its worker is gone", run_id)
        self._begin(self._making(run_id, token, work, journal, outbox))

    async def _keep(self, run_id: str, token: str) -> None:
        """Gives signs of life of a run that is about to begin again."""
        while True:
            with contextlib.suppress(StoreUnavailable):
                await self.store.beat([(run_id, token)])
            await asyncio.sleep(BEAT_S)

    async def _fail(self, record: RunRecord, token: str, error: Exception) -> None:
        number = record.last + 1
        told = Told(events=[event(ENDS["failed"], number)], last=number)
        with contextlib.suppress(StoreUnavailable):
            problem = self._to_reply(error).body["error"]
            await self.store.settle(record.id, token, told, "failed", {}, problem)

    async def _give_up(self, run_id: str) -> None:
        record = await self.store.find(run_id)
        number = 0 if record is None else record.last + 1
        told = Told(events=[event(ENDS["failed"], number)], last=number)
        if await self.store.give_up(run_id, told, INTERRUPTED):
            log.warning("run %s has failed: its worker is gone", run_id)
