"""What a run does as it happens, for whoever wants to watch: contexts, generations, tools, KV over time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from extensions.programs.request import TraceNoted

MAX_NOTES = 10_000
"""A run that does more than that is told up to here, and that there was more."""

SAMPLE_S = 0.2
"""Between two measurements of KV."""


class Trace:
    """Notes of one run, or nothing at all unless the request asks for them.

    Args:
        put: Takes each note; None if nobody wants any.
        elapsed_s: Seconds since the run was admitted.
    """

    def __init__(self, put: Callable[[TraceNoted], None] | None, elapsed_s: Callable[[], float]) -> None:
        self._put = put
        self._elapsed_s = elapsed_s
        self._num_notes = 0

    def note(self, kind: str, **data: Any) -> None:
        """Tells that something happened.

        Args:
            kind: `context.open`, `context.close`, `generate.start`, `generate.end`, `tool.start`, `tool.end`, `kv`.
            data: What is known of it; JSON.
        """
        if self._put is None or self._num_notes > MAX_NOTES:
            return
        self._num_notes += 1
        if self._num_notes > MAX_NOTES:
            kind, data = "cut", {}
        self._put(TraceNoted(round(self._elapsed_s() * 1000, 3), kind, data))

    @contextlib.asynccontextmanager
    async def sampling(self, charged_kib_ms: Callable[[], Awaitable[int]]) -> AsyncIterator[None]:
        """Notes, while its body runs, what KV the run pays for.

        Args:
            charged_kib_ms: Tells what it has been charged up to now, in KiB times milliseconds.
        """
        if self._put is None:
            yield
            return
        task = asyncio.create_task(self._sample(charged_kib_ms))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sample(self, charged_kib_ms: Callable[[], Awaitable[int]]) -> None:
        before, before_s = 0, self._elapsed_s()
        while True:
            await asyncio.sleep(SAMPLE_S)
            charged, now_s = await charged_kib_ms(), self._elapsed_s()
            # The mean since the last time, which is exact: charges are integrals.
            self.note("kv", bytes=round(max(charged - before, 0) * 1024 / ((now_s - before_s) * 1000)))
            before, before_s = charged, now_s
