"""One batch under a lease: validated, worked on, and ended with its files; or given back for another worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from gateway.batches.halt import Halt
from gateway.batches.journal import Journal
from gateway.batches.lines import InputCheck, InputError, Line, input_fault, read_lines, read_request
from gateway.batches.making import Making, Tools
from gateway.batches.results import UNDONE, ResultCopier, undone_line
from gateway.errors import StoreUnavailable
from gateway.state.batch_records import Batch, Place, Status
from gateway.state.file_bytes import Draft, FileBytes
from gateway.state.files import FileRecord, new_file_id
from gateway.state.leases import Lease, LeaseLost
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""Seconds between signs of life; a cancellation asked of another worker is seen so much later."""

MAX_FRUITLESS = 10
"""Times that workers may die with a batch before one line gets done; then it fails, as it may be its fault."""

TROUBLE_PAUSE_S = 5.0
"""How long a batch waits after its disk or Redis failed."""

INPUT = "input.jsonl"
"""The input in the directory of a batch: a name of its own, so that deleting the file disturbs nothing."""

_LOST_INPUT = "The input file of this batch is no longer on this server."
_DEADLY = "The server process that worked on this batch ended again and again before it got a line done."


class Job:
    """Works on one batch until it has ended, or somebody else has to.

    Args:
        tools: What to work with.
        lease: Of the batch.
    """

    def __init__(self, tools: Tools, lease: Lease) -> None:
        self._tools = tools
        self._lease = lease
        self._halt = Halt()
        self._nudge = asyncio.Event()
        self._num_lines = 0

    def drain(self) -> None:
        """Begins no more lines, waits for those in flight, and gives the batch back."""
        self._halt.ask("drain")

    def stop(self) -> None:
        """Ends lines in flight too, and gives the batch back."""
        self._halt.ask("stopped")

    def nudge(self) -> None:
        """Looks at once whether the batch was cancelled."""
        self._nudge.set()

    async def run(self) -> None:
        """Returns when the batch has ended or is given back."""
        batch_id = self._lease.batch_id
        try:
            batch = await self._tools.records.read(batch_id)
            if batch is None:
                return
            async with _running(self._beat(batch)):
                try:
                    await self._work(batch, await self._tools.files.bytes())
                except (StoreUnavailable, OSError) as error:
                    log.warning("%s: %s; trying again later", batch_id, error)
                    await asyncio.sleep(TROUBLE_PAUSE_S)
                    await self._lease.release()
        except LeaseLost:
            log.info("%s: another worker goes on with it", batch_id)
        except StoreUnavailable as error:
            log.warning("%s: %s", batch_id, error)
        except Exception:
            # The lease runs out, which is the pause before the next try; tries are counted.
            log.exception("%s: work on it failed", batch_id)

    async def _beat(self, batch: Batch) -> None:
        while True:
            if _is_over(batch):
                self._halt.ask("expired")
            try:
                if await self._lease.renew() == "cancelling":
                    self._halt.ask("cancelled")
            except LeaseLost:
                self._halt.ask("lost")
                return
            except StoreUnavailable as error:
                log.warning("%s: no sign of life could be given: %s", batch.id, error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._nudge.wait()
            self._nudge.clear()

    async def _work(self, batch: Batch, files: FileBytes) -> None:
        directory = files.batch_directory(batch.id)
        self._num_lines = batch.num_lines
        if batch.has_ended:
            return
        if batch.num_fruitless > MAX_FRUITLESS:
            await self._end(batch, files, "failed", [input_fault("server_error", _DEADLY)])
            return
        if batch.status == "cancelling":
            self._halt.ask("cancelled")
        elif _is_over(batch):
            self._halt.ask("expired")
        try:
            if batch.status == "validating" and self._halt.reason is None:
                await self._validate(batch, directory / INPUT)
            if self._num_lines and self._halt.reason is None:
                await self._make(batch, directory)
            await self._settle(batch, files)
        except InputError as error:
            await self._end(batch, files, "failed", error.faults)
        except FileNotFoundError:
            self._num_lines = 0
            await self._end(batch, files, "failed", [input_fault("file_not_found", _LOST_INPUT)])

    async def _validate(self, batch: Batch, path: Path) -> None:
        check = InputCheck(batch.fixed.endpoint, self._tools.resolve, self._tools.settings.max_batch_lines)
        async with aclosing(read_lines(path, self._tools.max_line_bytes)) as chunks:
            async for lines in chunks:
                if self._halt.soft.is_set():
                    return
                await asyncio.to_thread(check.look, lines)
        check.end()
        told = {"total": str(check.num_lines), "model": check.model or self._tools.resolve(None)}
        if await self._lease.move("in_progress", ("validating",), **told):
            self._num_lines = check.num_lines
            log.info("%s: %d requests", batch.id, check.num_lines)
        else:
            self._halt.ask("cancelled")

    async def _make(self, batch: Batch, directory: Path) -> None:
        journal = Journal(directory, self._lease)
        try:
            await Making(self._tools, batch, directory / INPUT, journal, self._halt).run()
        finally:
            await journal.aclose()

    async def _settle(self, batch: Batch, files: FileBytes) -> None:
        """Ends the batch, or gives it back."""
        match self._halt.reason:
            case "lost":
                raise LeaseLost
            case "drain" | "stopped":
                await self._lease.release()
            case "cancelled" | "expired" as ending:
                await self._end(batch, files, ending)
            case None:
                if await self._lease.move("finalizing", ("in_progress",)):
                    await self._end(batch, files, "completed")
                else:
                    await self._end(batch, files, "cancelled")

    async def _end(
        self, batch: Batch, files: FileBytes, status: Status, faults: Sequence[dict[str, Any]] | None = None
    ) -> None:
        fields = {} if faults is None else {"errors": msgspec.json.encode(faults).decode()}
        directory = files.batch_directory(batch.id)
        with files.draft() as output, files.draft() as errors:
            await self._assemble(batch, directory, status, output, errors)
            made: list[FileRecord] = []
            for name, draft in (("output", output), ("error", errors)):
                if draft.size_bytes:
                    made.append(_record(batch, name, draft))
                    fields[f"{name}_file_id"] = made[-1].id
                    await asyncio.to_thread(draft.place, files.path(made[-1].id))
            try:
                await self._lease.finish(status, made, **fields)
            except LeaseLost:
                for record in made:
                    files.remove(record.id)
                raise
        log.info("%s: %s", batch.id, status)
        await asyncio.to_thread(files.remove_batch, batch.id)

    async def _assemble(self, batch: Batch, directory: Path, status: Status, output: Draft, errors: Draft) -> None:
        """Writes results in the order of the input: what was recorded, and why the rest was not done."""
        if not self._num_lines:
            return
        copier = ResultCopier(directory, output, errors)
        endpoint = batch.fixed.endpoint

        def copy(lines: Sequence[Line], places: Sequence[Place | None]) -> None:
            for line, place in zip(lines, places, strict=True):
                if place is not None:
                    copier.copy(place)
                elif status in UNDONE:
                    copier.add_error(undone_line(read_request(line, endpoint).custom_id, status))
                else:
                    raise OSError(f"{batch.id} has no result of line {line.number}")

        try:
            async with aclosing(read_lines(directory / INPUT, self._tools.max_line_bytes)) as chunks:
                async for lines in chunks:
                    places = await self._tools.records.places(batch.id, [line.number for line in lines])
                    await asyncio.to_thread(copy, lines, places)
        finally:
            copier.close()


def _is_over(batch: Batch) -> bool:
    """Whether its time is over, and not only its results still to be put together."""
    return time.time() >= batch.fixed.expires_at and batch.status != "finalizing"


def _record(batch: Batch, name: str, draft: Draft) -> FileRecord:
    now = int(time.time())
    return FileRecord(
        id=new_file_id(),
        owner=batch.owner,
        filename=f"{batch.id}_{name}.jsonl",
        purpose="batch_output",
        num_bytes=draft.size_bytes,
        created_at=now,
        expires_at=now + batch.fixed.output_ttl_s,
    )


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A task beside the block, which ends with it."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end_task(task)
