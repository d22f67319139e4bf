"""Detached runs of one worker: begun, kept alive, ended; and those of workers that are gone, given up."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from gateway.errors import ErrorReply, NotReady, StoreUnavailable
from gateway.lifecycle import Lifecycle
from gateway.programs.work import ProgramWork
from gateway.runs.events import ENDS, event
from gateway.runs.inbox import RunInbox
from gateway.runs.making import INTERRUPTED, End, Making
from gateway.sse import close_shielded
from gateway.state.bells import Bells
from gateway.state.run_store import RunStore, Told
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

BEAT_S = 0.5
"""Seconds between signs of life; a run that another worker was asked to cancel ends so much later."""

LOOK_S = 1.0
"""Seconds between looks for runs that nobody works on."""

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

    Attributes:
        store: See above.
    """

    def __init__(
        self, store: RunStore, bells: Bells, lifecycle: Lifecycle, to_reply: Callable[[Exception], ErrorReply]
    ) -> None:
        self.store = store
        self._bells = bells
        self._lifecycle = lifecycle
        self._to_reply = to_reply
        self._makings: dict[str, Making] = {}
        self._tasks: set[asyncio.Task[None]] = set()
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

    async def start(self, work: ProgramWork, owner: str, head: dict[str, Any], *, attach: bool = False) -> ProgramWork:
        """Keeps a program that has begun, and goes on with it whoever is there to read; closes it where that cannot be.

        Args:
            work: The program; its id is that of the run.
            owner: Whose it is.
            head: What is known of it.
            attach: The request reads it too.

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
            if not await self.store.create(run_id, owner, token, head):
                most = self.store.bounds.runs
                raise NotReady(f"You have {most} runs that have not ended. Try again later.")
        except BaseException:
            self._lifecycle.leave()
            await close_shielded(work)
            raise
        making = Making(self.store, run_id, token, work, self._to_reply)
        reader = ProgramWork(making.attach()) if attach else work
        self._makings[run_id] = making
        task = asyncio.create_task(self._make(making))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.watch()
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())
        return reader

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
        await asyncio.gather(*(making.end("interrupted") for making in list(self._makings.values())))
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await end_task(self._beating)
        await end_task(self._watching)
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
        while True:
            try:
                overdue = await self.store.overdue()
                now_s = time.monotonic()
                since = {run_id: since.get(run_id, now_s) for run_id in overdue}
                for run_id in [one for one, seen_s in since.items() if now_s - seen_s >= GRACE_S]:
                    await self._give_up(run_id)
            except StoreUnavailable as error:
                log.warning("runs cannot be looked after: %s", error)
                since = {}
            except Exception:
                log.exception("looking after runs failed")
            await asyncio.sleep(LOOK_S)

    async def _give_up(self, run_id: str) -> None:
        record = await self.store.find(run_id)
        number = 0 if record is None else record.last + 1
        told = Told(events=[event(ENDS["failed"], number)], last=number)
        if await self.store.give_up(run_id, told, INTERRUPTED):
            log.warning("run %s has failed: its worker is gone", run_id)
