"""Files that clients upload and that batches write: their records in Redis, their bytes on disk.

Bytes lie on disk because they are many and are read once from end to end; Redis would hold them in memory. Every
worker of a server sees both. A file never changes. It belongs to an owner, and to everybody else it is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
from redis.asyncio import Redis

from gateway.errors import BadRequest, StoreUnavailable
from gateway.state import file_scripts
from gateway.state.file_bytes import Draft, FileBytes
from gateway.state.link import unavailable
from gateway.state.store import PREFIX

log = logging.getLogger(__name__)

_PAGE = 1000
"""Most records that Redis looks through at once: others wait meanwhile."""

_SWEEP_LOCK_MS = 300_000


@dataclass(frozen=True, kw_only=True, slots=True)
class FileBounds:
    """How much is kept.

    Attributes:
        count: Files.
        bytes: Of all files together.
    """

    count: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """What is known of a file.

    Attributes:
        id: Ours.
        owner: Whose it is.
        filename: As its client called it; a label, never a path.
        purpose: What it is for.
        num_bytes: Its size.
        created_at: Unix time.
        expires_at: Unix time after which it is not there; None keeps it.
    """

    id: str
    owner: str
    filename: str
    purpose: str
    num_bytes: int
    created_at: int
    expires_at: int | None = None

    def shown(self) -> dict[str, Any]:
        """The file object of the API."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }

    def arguments(self) -> list[str | bytes]:
        """The record as scripts take it."""
        expires_ms = 0 if self.expires_at is None else self.expires_at * 1000
        doc = msgspec.json.encode(self.shown())
        return [self.id, doc, self.owner, self.purpose, str(self.num_bytes), str(expires_ms)]


def new_file_id() -> str:
    """An id that no other file has."""
    return f"file-{uuid.uuid4().hex}"


class FileStore:
    """The files. Belongs to one event loop; touches disk and Redis when first used.

    Args:
        redis: Holds the records; the caller closes it.
        directory: Holds the bytes. Each Redis has a directory of its own in it.
        bounds: How much is kept.
    """

    def __init__(self, redis: Redis, directory: Path, bounds: FileBounds) -> None:
        self._redis = redis
        self._directory = directory
        self._bounds = bounds
        self._bytes: FileBytes | None = None
        self._num_uploading_bytes = 0
        register = redis.register_script
        self._add = register(file_scripts.ADD_FILE)
        self._read = register(file_scripts.READ_FILE)
        self._drop = register(file_scripts.DROP_FILE)
        self._list = register(file_scripts.LIST_FILES)
        self._expire = register(file_scripts.EXPIRE_FILES)

    async def bytes(self) -> FileBytes:
        """Where the bytes are.

        Raises:
            StoreUnavailable: Redis did not answer, or the directory cannot be used.
        """
        if self._bytes is None:
            # Two servers with a Redis each may have one directory: neither may take the other's files for lost ones.
            with unavailable("files"):
                await self._redis.set(f"{PREFIX}store_id", uuid.uuid4().hex, nx=True)
                name = cast("bytes", await self._redis.get(f"{PREFIX}store_id")).decode()
            with disk_errors():
                self._bytes = await asyncio.to_thread(FileBytes, self._directory / name)
        return self._bytes

    async def check_room(self, num_bytes: int) -> None:
        """Refuses an upload that will not fit, before it is read.

        Args:
            num_bytes: Of it, those of which one knows.

        Raises:
            BadRequest: There are too many files, or they would be too large together.
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("files"):
            count, total = cast("list[Any]", await self._redis.hmget(f"{PREFIX}f_totals", ["count", "bytes"]))
        if int(count or 0) >= self._bounds.count:
            raise self._too_many()
        if int(total or 0) + self._num_uploading_bytes + num_bytes > self._bounds.bytes:
            raise self._too_large()

    def begin_part(self, num_bytes: int) -> None:
        """Counts bytes of an upload that is on its way; `end_upload` takes them back."""
        self._num_uploading_bytes += num_bytes

    def end_upload(self, num_bytes: int) -> None:
        """The upload is over."""
        self._num_uploading_bytes -= num_bytes

    async def add(self, draft: Draft, record: FileRecord) -> None:
        """Keeps what has been written.

        Raises:
            BadRequest: There are too many files, or they would be too large together.
            StoreUnavailable: Redis did not answer, or the disk is full.
        """
        bytes_ = await self.bytes()
        with disk_errors():
            await asyncio.to_thread(draft.place, bytes_.path(record.id))
        bounds = [str(self._bounds.count), str(self._bounds.bytes)]
        # Where the answer is lost the file may be known: then it stays, and is swept up later if it is not.
        with unavailable("files"):
            done = int(await self._add(keys=[f"{PREFIX}f:{record.id}"], args=[PREFIX, *bounds, *record.arguments()]))
        if done < 1:
            await asyncio.to_thread(bytes_.remove, record.id)
            raise self._too_many() if done == 0 else self._too_large()

    async def read(self, file_id: str, owner: str) -> dict[str, Any] | None:
        """The file object, or None if `owner` has none of that id.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("files"):
            found = await self._read(keys=[f"{PREFIX}f:{file_id}"], args=[PREFIX])
        if found is None or found[1] != owner.encode():
            return None
        doc: dict[str, Any] = msgspec.json.decode(found[0])
        return doc

    async def page(
        self, owner: str, *, after: str | None, order: str, limit: int, purpose: str | None
    ) -> list[dict[str, Any]] | None:
        """File objects in order of age, at most `limit`; None if there is none to go on after.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        docs: list[dict[str, Any]] = []
        cursor = after or ""
        while len(docs) < limit:
            most = min(_PAGE, limit - len(docs))
            with unavailable("files"):
                found = await self._list(
                    keys=[f"{PREFIX}fo:{owner}"], args=[PREFIX, cursor, order, str(most), purpose or ""]
                )
            if found is None:
                # A file that was removed while its list was read ends the list.
                return docs or None
            docs += [msgspec.json.decode(doc) for doc in found]
            if len(found) < most:
                break
            cursor = docs[-1]["id"]
        return docs

    async def remove(self, file_id: str) -> bool:
        """Forgets a file; False if there was none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("files"):
            found = bool(await self._drop(keys=[f"{PREFIX}f:{file_id}"], args=[PREFIX, file_id]))
        await asyncio.to_thread((await self.bytes()).remove, file_id)
        return found

    async def sweep(self, open_batches: Sequence[str]) -> None:
        """Removes files whose time is over, and what processes left behind when they were killed.

        Args:
            open_batches: Batches that have not ended.

        Raises:
            StoreUnavailable: Redis did not answer, or the disk does not.
        """
        bytes_ = await self.bytes()
        while True:
            with unavailable("files"):
                expired = await self._expire(keys=[f"{PREFIX}f_expiry"], args=[PREFIX])
            if not expired:
                break
            for file_id in expired:
                await asyncio.to_thread(bytes_.remove, file_id.decode())
        with unavailable("files"):
            is_mine = await self._redis.set(f"{PREFIX}f_sweep", "1", nx=True, px=_SWEEP_LOCK_MS)
        if is_mine:
            await self._remove_left_behind(bytes_, set(open_batches))

    async def _remove_left_behind(self, bytes_: FileBytes, open_batches: set[str]) -> None:
        with disk_errors():
            await asyncio.to_thread(bytes_.remove_stale_uploads)
            stale = await asyncio.to_thread(bytes_.stale_files)
            batches = await asyncio.to_thread(bytes_.stale_batches)
        for file_id in stale:
            with unavailable("files"):
                is_known = await self._redis.exists(f"{PREFIX}f:{file_id}")
            if not is_known:
                log.info("removing %s, which nothing refers to", file_id)
                await asyncio.to_thread(bytes_.remove, file_id)
        for batch_id in batches:
            if batch_id not in open_batches:
                await asyncio.to_thread(bytes_.remove_batch, batch_id)

    def _too_many(self) -> BadRequest:
        return BadRequest(
            f"This server keeps at most {self._bounds.count} files. Delete some first.", "file", "too_many_files"
        )

    def _too_large(self) -> BadRequest:
        return BadRequest(
            f"The files on this server must not have more than {self._bounds.bytes} bytes together. Delete some first.",
            "file",
            "storage_limit_exceeded",
        )


@contextlib.contextmanager
def disk_errors() -> Iterator[None]:
    """Turns failures of the disk into `StoreUnavailable`.

    Raises:
        StoreUnavailable: The disk is full, say.
    """
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"The files of this server cannot be written or read: {error.strerror}.") from error
