"""Where results go as they come: to disk first, then into the record, so that a recorded result is always there."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from gateway.errors import StoreUnavailable
from gateway.state.batch_records import LineUsage, Place
from gateway.state.leases import Lease

PATIENCE_S = 60.0
"""How long a result waits for a Redis that is away; then the line will be done again."""

_PAUSE_S = 0.1


class Journal:
    """The results that one worker has of one batch. What comes while others are written is written together.

    Args:
        directory: That of the batch.
        lease: Under which they are recorded. Its epoch names the file, so no two holders write to the same one.
    """

    def __init__(self, directory: Path, lease: Lease) -> None:
        self._segment = f"{lease.epoch}.jsonl"
        self._descriptor = os.open(directory / self._segment, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._lease = lease
        self._offset = 0
        self._waiting: list[tuple[int, bytes, bool, LineUsage, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def add(self, number: int, line: bytes, *, is_ok: bool, usage: LineUsage) -> None:
        """Keeps the result of a line; returns once the line is done.

        Raises:
            LeaseLost: Somebody else works on the batch.
            StoreUnavailable: Redis is away for too long.
            OSError: The disk is full, say.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, line, is_ok, usage, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        await future

    async def aclose(self) -> None:
        """Waits for what is being written, and closes the file."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        os.close(self._descriptor)

    async def _write_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await self._write([(number, line, is_ok, usage) for number, line, is_ok, usage, _ in group])
            except Exception as error:
                for *_, future in group:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        future.set_exception(error)
            else:
                for *_, future in group:
                    with contextlib.suppress(asyncio.InvalidStateError):
                        future.set_result(None)

    async def _write(self, group: list[tuple[int, bytes, bool, LineUsage]]) -> None:
        places: list[tuple[int, Place, LineUsage]] = []
        offset = self._offset
        for number, line, is_ok, usage in group:
            places.append((number, Place(self._segment, offset, len(line), is_ok), usage))
            offset += len(line)
        await asyncio.to_thread(self._append, b"".join(line for _, line, _, _ in group))
        self._offset = offset
        await self._record(places)

    def _append(self, data: bytes) -> None:
        view, at = memoryview(data), self._offset
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written
        os.fsync(self._descriptor)

    async def _record(self, places: list[tuple[int, Place, LineUsage]]) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while True:
            try:
                await self._lease.record(places)
                return
            except StoreUnavailable:
                if loop.time() > deadline_s:
                    raise
            await asyncio.sleep(_PAUSE_S)
