"""Processes that scripts run in: started when first needed, replaced when one dies, ended with the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pydantic_monty as monty

from extensions.errors import SandboxUnavailable

log = logging.getLogger(__name__)

_SETTLE_S = 0.25
"""How long the pool's threads may hold Python objects after they have said that they ended. An interpreter that ends
before them aborts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolOptions:
    """How many processes there are.

    Attributes:
        min_workers: Kept ready from the first use on.
        max_workers: Scripts that run at once; one process each.
        checkout_s: Longest wait for a free one.
        grace_s: How long a script that overstays may be busy inside one operation before its process is killed.
        max_checkouts: Scripts that a process runs before it is replaced.
    """

    min_workers: int = 4
    max_workers: int = 256
    checkout_s: float = 10.0
    grace_s: float = 0.5
    max_checkouts: int = 1000


class WorkerPool:
    """The processes of one gateway worker. A script has its process to itself while it runs, and starts afresh.

    Attributes:
        num_running: Processes in use.
    """

    def __init__(self, options: PoolOptions | None = None) -> None:
        self.options = options or PoolOptions()
        self.num_running = 0
        self._pool: monty.AsyncMonty | None = None
        self._starting = asyncio.Lock()
        self._returning: set[asyncio.Task[bool | None]] = set()
        self._is_closed = False

    async def start(self) -> None:
        """Starts the first processes, unless they are there already.

        Raises:
            SandboxUnavailable: They cannot be started, or the pool was closed.
        """
        await self._started()

    @contextlib.asynccontextmanager
    async def checkout(
        self, limits: monty.ResourceLimits, *, stubs: str | None = None, os_policy: monty.OSPolicy | None = None
    ) -> AsyncIterator[monty.AsyncMontySession]:
        """Takes a process; it is given back at the end, or replaced if the script in it was cut off.

        Whose script has ended does not wait until its process is ready for the next one.

        Args:
            limits: Of the script.
            stubs: Check the script against these types before it runs.
            os_policy: What becomes of its wishes for time, sleep and chance; all are met in the process if left out.

        Raises:
            SandboxUnavailable: None became free in time.
        """
        pool = await self._started()
        session = pool.checkout(
            script_name="main.py",
            limits=limits,
            type_check=stubs is not None,
            type_check_stubs=stubs,
            type_check_format="json",
            os_policy=os_policy or {"sleep": "system", "sleep_system_max": math.inf},
        )
        try:
            await session.__aenter__()
        except TimeoutError:
            raise SandboxUnavailable(
                f"{self.num_running} programs run already, and none ended within {self.options.checkout_s:g} s"
            ) from None
        except monty.MontyError as error:
            raise SandboxUnavailable(f"no process could be started for the program: {error}") from error
        self.num_running += 1
        try:
            yield session
        except BaseException:
            self.num_running -= 1
            await asyncio.shield(session.__aexit__(None, None, None))
            raise
        self.num_running -= 1
        returning = asyncio.ensure_future(session.__aexit__(None, None, None))
        self._returning.add(returning)
        returning.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[bool | None]) -> None:
        self._returning.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a process that a program had run in was not given back: %s", error)

    async def aclose(self) -> None:
        """Ends all processes, whatever runs in them. Idempotent."""
        self._is_closed = True
        async with self._starting:
            pool, self._pool = self._pool, None
        if pool is not None:
            if self._returning:
                await asyncio.wait(self._returning)
            await pool.__aexit__(None, None, None)
            await asyncio.sleep(_SETTLE_S)

    async def _started(self) -> monty.AsyncMonty:
        async with self._starting:
            if self._is_closed:
                raise SandboxUnavailable("the server is shutting down")
            if self._pool is None:
                pool = self._configured()
                try:
                    await pool.__aenter__()
                except (monty.MontyError, OSError) as error:
                    raise SandboxUnavailable(f"the sandbox cannot be started: {error}") from error
                self._pool = pool
            return self._pool

    def _configured(self) -> monty.AsyncMonty:
        options = self.options
        return monty.AsyncMonty(
            min_processes=options.min_workers,
            max_processes=options.max_workers,
            checkout_timeout=options.checkout_s,
            max_checkouts_per_worker=options.max_checkouts,
            feed_duration_limit_grace=options.grace_s,
            turn_duration_limit_grace=options.grace_s,
        )
