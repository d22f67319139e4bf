"""Detached runs of one worker: begun, kept alive, ended or handed over."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any

from extensions.programs.run import ProgramRun
from gateway.errors import ErrorReply, NotReady, StoreUnavailable
from gateway.lifecycle import Lifecycle
from gateway.programs.work import ProgramWork
from gateway.runs.inbox import RunInbox
from gateway.runs.journal import RunJournal
from gateway.runs.making import End, Making
from gateway.runs.outbox import Outbox
from gateway.runs.reviving import Reviver
from gateway.runs.watching import Watch
from gateway.sse import close_shielded
from gateway.state.bells import Bells
from gateway.state.run_store import RunStore
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

BEAT_S = 0.5
"""Seconds between signs of life; a run that another worker was asked to cancel ends so much later."""


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
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._beating: asyncio.Task[None] | None = None
        self._watch = Watch(store, lifecycle, reviver, self._go_on, to_reply)
        self._is_draining = False

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
        if self._is_draining:
            self._leave(making)
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

    def has_left(self, run_id: str) -> bool:
        """True once this worker is draining and does not work on the run: if it goes on, then elsewhere."""
        return self._lifecycle.is_draining and run_id not in self._makings

    def watch(self) -> None:
        """Begins to look for runs that nobody works on. Idempotent."""
        self._watch.start()

    def begin_drain(self) -> None:
        """Begins to hand runs over: each once it is read by no request and no effect of it is under way. Idempotent."""
        if not self._is_draining:
            self._is_draining = True
            self._watch.begin_drain()
            for making in self._makings.values():
                self._leave(making)

    async def hand_over(self) -> None:
        """Hands over all runs that others can go on with, as they are, and ends the others; returns once that is
        written down, or cannot be. Idempotent."""
        await self._watch.aclose()
        await asyncio.gather(*(making.stop() for making in list(self._makings.values())))
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def aclose(self) -> None:
        """Does the same, and closes the store. Idempotent."""
        self.begin_drain()
        await self.hand_over()
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
            if (leaving := self._leaving.pop(making.run_id, None)) is not None:
                leaving.cancel()
            self._lifecycle.leave()

    def _leave(self, making: Making) -> None:
        self._leaving[making.run_id] = asyncio.create_task(making.hand_over())

    def _go_on(self, run_id: str, token: str, work: ProgramWork, journal: RunJournal, outbox: Outbox) -> None:
        self._begin(self._making(run_id, token, work, journal, outbox))

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
