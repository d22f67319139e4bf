"""The batches that one worker works on: taken when nobody else has them, given back when it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.batches.job import Job
from gateway.batches.making import Tools
from gateway.errors import NotReady, StoreUnavailable
from gateway.lifecycle import Lifecycle

log = logging.getLogger(__name__)

MAX_JOBS = 8
"""Batches that one worker works on at the same time; they share its lines in flight."""

POLL_S = 1.0
"""Seconds between looks for batches that nobody works on."""

SWEEP_S = 60.0


class BatchRunner:
    """Takes batches and works on them. Belongs to one event loop; does nothing until it is started.

    Each batch counts as a request in flight, so a drain waits for what it has begun.

    Args:
        tools: What to work with.
        lifecycle: Told of batches in work.
        redis: What `tools` use; closed at the end.
    """

    def __init__(self, tools: Tools, lifecycle: Lifecycle, redis: Redis) -> None:
        self.tools = tools
        self._redis = redis
        self._lifecycle = lifecycle
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._is_ending = False

    @property
    def num_jobs(self) -> int:
        """Batches in work here."""
        return len(self._jobs)

    def start(self) -> None:
        """Begins to look for batches. Idempotent."""
        if self._looking is None and self.tools.settings.batch_lines:
            self._looking = asyncio.create_task(self._look())

    def wake(self) -> None:
        """There is a new batch: looks at once."""
        self._news.set()

    def cancelled(self, batch_id: str) -> None:
        """A batch was cancelled; it may be in work here."""
        if (job := self._jobs.get(batch_id)) is not None:
            job.nudge()
        self._news.set()

    def begin_drain(self) -> None:
        """Begins no more lines and gives all batches back once those in flight have ended. Idempotent."""
        self._is_ending = True
        self._news.set()
        for job in self._jobs.values():
            job.drain()

    async def aclose(self) -> None:
        """Ends what is in flight, gives all batches back, and waits for that. Idempotent."""
        self.begin_drain()
        for job in self._jobs.values():
            job.stop()
        if self._looking is not None:
            await asyncio.wait([self._looking])
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose(close_connection_pool=True)

    async def _look(self) -> None:
        swept_s, is_away = time.monotonic(), False
        while not self._is_ending:
            try:
                while len(self._jobs) < MAX_JOBS and await self._take():
                    pass
                if time.monotonic() - swept_s > SWEEP_S:
                    swept_s = time.monotonic()
                    await self.tools.files.sweep(await self.tools.records.open_ids())
                is_away = False
            except StoreUnavailable as error:
                if not is_away:
                    log.warning("no batches can be looked for: %s", error)
                is_away = True
            except Exception:
                log.exception("looking for batches failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._news.wait()
            self._news.clear()

    async def _take(self) -> bool:
        """Begins to work on one more batch; False if there is none."""
        if self._is_ending:
            return False
        lease = await self.tools.records.claim()
        if lease is None:
            return False
        try:
            self._lifecycle.enter()
        except NotReady:
            await lease.release()
            return False
        job = self._jobs[lease.batch_id] = Job(self.tools, lease)
        if self._is_ending:
            job.stop()
        task = asyncio.create_task(self._run(lease.batch_id, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _run(self, batch_id: str, job: Job) -> None:
        try:
            await job.run()
        finally:
            if self._jobs.get(batch_id) is job:
                del self._jobs[batch_id]
            self._lifecycle.leave()
            self._news.set()
