"""Responses that are worked on with nobody waiting: tasks of this worker, known to all workers through the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from gateway.errors import StoreUnavailable
from gateway.lifecycle import Lifecycle
from gateway.state.store import ResponseStore
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

BEAT_S = 0.25
"""Seconds between signs of life; a response that another worker was asked to cancel ends so much later."""


class BackgroundRuns:
    """The tasks of one worker. They count as requests in flight: a drain waits for them as for any other.

    A task that is cancelled here has been asked to end its response as cancelled; it gets to write that down.

    Args:
        store: Told that the responses are alive; None if nothing can run.
        lifecycle: Counts them.
    """

    def __init__(self, store: ResponseStore | None, lifecycle: Lifecycle) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._beating: asyncio.Task[None] | None = None

    @property
    def num_running(self) -> int:
        """Tasks that have not ended."""
        return len(self._tasks)

    async def start(self, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` until it ends or somebody cancels the response; closes it where that cannot be.

        Raises:
            NotReady: The process is draining.
            StoreUnavailable: Redis did not answer.
        """
        assert self._store is not None
        try:
            await self._store.beat([response_id])
            self._lifecycle.enter()
        except BaseException:
            work.close()
            raise
        task = asyncio.create_task(self._run(response_id, work))
        self._tasks[response_id] = task
        task.add_done_callback(lambda _: self._forget(response_id))
        # Begun before anybody can cancel it: what has not begun could not write down how it ended.
        await asyncio.sleep(0)
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    def has_left(self, response_id: str) -> bool:
        """True once this worker is draining and does not work on the response: if it goes on, then elsewhere."""
        return self._lifecycle.is_draining and response_id not in self._tasks

    async def cancel(self, response_id: str) -> bool:
        """Ends a response that is worked on here and waits for that; false if it is not."""
        task = self._tasks.get(response_id)
        if task is None:
            return False
        self._end(response_id, task)
        await asyncio.wait([task])
        return True

    async def aclose(self) -> None:
        """Ends all of them. Idempotent."""
        for response_id in list(self._tasks):
            await self.cancel(response_id)
        await end_task(self._beating)

    async def _run(self, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        assert self._store is not None
        try:
            await work
            await self._store.forget_run(response_id)
        except StoreUnavailable as error:
            log.warning("the end of response %s could not be stored: %s", response_id, error)
        except Exception:
            log.exception("response %s failed in the background", response_id)

    def _end(self, response_id: str, task: asyncio.Task[None]) -> None:
        """Cancels a task once: a second time could keep it from writing down that it was."""
        if response_id not in self._ending:
            self._ending.add(response_id)
            task.cancel()

    def _forget(self, response_id: str) -> None:
        del self._tasks[response_id]
        self._ending.discard(response_id)
        self._lifecycle.leave()

    async def _beat(self) -> None:
        assert self._store is not None
        while self._tasks:
            try:
                for response_id in await self._store.beat(list(self._tasks)):
                    if (task := self._tasks.get(response_id)) is not None:
                        self._end(response_id, task)
            except StoreUnavailable as error:
                log.warning("no sign of life could be given: %s", error)
            await asyncio.sleep(BEAT_S)
