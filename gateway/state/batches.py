"""Batches in Redis: what they are, how far they are, who works on them, and where their results lie on disk."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis

from gateway.state import batch_scripts
from gateway.state.files import FileRecord
from gateway.state.link import unavailable
from gateway.state.store import PREFIX

LEASE_S = 6.0
"""A batch is taken over when whoever works on it has said nothing for so long."""

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
_TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
_USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")

MAX_ENDED = 10_000
"""Most batches that have ended and are still told of; the one that ended longest ago goes first."""

_KEPT_MS = 30 * 24 * 3600 * 1000
"""How long those are told of."""


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch is told when it is created.

    Attributes:
        input_file_id: What it reads.
        endpoint: What its lines ask.
        completion_window: As the client wrote it.
        created_at: Unix time.
        expires_at: Unix time at which it ends, whatever is done.
        metadata: The client's.
        output_ttl_s: How long its results are kept.
    """

    input_file_id: str
    endpoint: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None
    output_ttl_s: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A batch as it is now.

    Attributes:
        id: Ours.
        owner: Whose it is.
        fixed: What does not change.
        status: How far it is.
        fields: Everything else that is stored, as text.
    """

    id: str
    owner: str
    fixed: Fixed
    status: Status
    fields: Mapping[str, str]

    @property
    def num_lines(self) -> int:
        """Requests in the input; 0 until it has been validated."""
        return self._number("total")

    @property
    def num_fruitless(self) -> int:
        """How often it has been taken since a result was last recorded, or since it was given back."""
        return self._number("fruitless")

    @property
    def has_ended(self) -> bool:
        """True if nothing will change any more."""
        return self.status in ENDED

    def shown(self) -> dict[str, Any]:
        """The batch object of the API."""
        fixed, fields = self.fixed, self.fields
        errors = fields.get("errors")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": fixed.endpoint,
            "model": fields.get("model"),
            "errors": None if errors is None else {"object": "list", "data": msgspec.json.decode(errors)},
            "input_file_id": fixed.input_file_id,
            "completion_window": fixed.completion_window,
            "status": self.status,
            "output_file_id": fields.get("output_file_id"),
            "error_file_id": fields.get("error_file_id"),
            "created_at": fixed.created_at,
            "expires_at": fixed.expires_at,
            **{name: self._time(name) for name in _TIMES},
            "request_counts": {name: self._number(name) for name in ("total", "completed", "failed")},
            "usage": self._usage(),
            "metadata": fixed.metadata,
        }

    def _usage(self) -> dict[str, Any]:
        read, cached, written, reasoning = (self._number(name) for name in _USAGE)
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": read + written,
        }

    def _number(self, name: str) -> int:
        return int(self.fields.get(name, "0"))

    def _time(self, name: str) -> int | None:
        value = self.fields.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the result of one line lies.

    Attributes:
        segment: File of the batch's directory.
        offset: In it.
        length: Bytes, the line break included.
        is_ok: Whether the request was answered.
    """

    segment: str
    offset: int
    length: int
    is_ok: bool

    def packed(self) -> str:
        """As text."""
        return f"{self.segment} {self.offset} {self.length} {int(self.is_ok)}"

    @classmethod
    def unpacked(cls, text: bytes) -> Place:
        """From text."""
        segment, offset, length, is_ok = text.decode().split()
        return cls(segment, int(offset), int(length), is_ok == "1")


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Tokens of one answer."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class LeaseLost(Exception):
    """Somebody else works on the batch now, or it is gone."""


class BatchStore:
    """The batches. Belongs to one event loop.

    Args:
        redis: Holds them; the caller closes it.
        max_open: Most batches that have not ended.
    """

    def __init__(self, redis: Redis, max_open: int) -> None:
        self._redis = redis
        self._max_open = max_open
        register = redis.register_script
        self._create = register(batch_scripts.CREATE)
        self._list = register(batch_scripts.LIST)
        self._claim = register(batch_scripts.CLAIM)
        self._renew = register(batch_scripts.RENEW)
        self._release = register(batch_scripts.RELEASE)
        self._move = register(batch_scripts.MOVE)
        self._record = register(batch_scripts.RECORD)
        self._finish = register(batch_scripts.FINISH)

    async def create(self, batch_id: str, owner: str, fixed: Fixed) -> bool:
        """Stores a new batch; False if too many have not ended.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        head = [PREFIX, batch_id, owner, str(self._max_open), str(MAX_ENDED), str(_KEPT_MS)]
        with unavailable("batches"):
            done = await self._create(
                keys=[_key(batch_id)], args=[*head, "fixed", msgspec.json.encode(fixed), "status", "validating"]
            )
        return bool(done)

    async def read(self, batch_id: str, owner: str | None = None) -> Batch | None:
        """A batch, or None if there is none of that id, or `owner` is given and has none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            found = cast("dict[bytes, bytes]", await self._redis.hgetall(_key(batch_id)))
        fields = {name.decode(): value.decode() for name, value in found.items()}
        if not fields or (owner is not None and fields["owner"] != owner):
            return None
        return Batch(
            id=batch_id,
            owner=fields["owner"],
            fixed=msgspec.json.decode(fields["fixed"], type=Fixed),
            status=cast("Status", fields["status"]),
            fields=fields,
        )

    async def page(self, owner: str, *, after: str | None, limit: int) -> list[Batch] | None:
        """Batches, the newest first, at most `limit`; None if there is none to go on after.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            ids = await self._list(keys=[f"{PREFIX}bo:{owner}"], args=[PREFIX, after or "", str(limit)])
        if ids is None:
            return None
        found = [await self.read(batch_id.decode(), owner) for batch_id in ids]
        return [batch for batch in found if batch is not None]

    async def open_ids(self) -> list[str]:
        """Ids of all batches that have not ended.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            ids = cast("list[bytes]", await self._redis.zrange(f"{PREFIX}b_open", 0, -1))
        return [batch_id.decode() for batch_id in ids]

    async def claim(self) -> Lease | None:
        """Takes the oldest batch that nobody works on.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        token = uuid.uuid4().hex
        with unavailable("batches"):
            found = await self._claim(keys=[f"{PREFIX}b_open"], args=[PREFIX, token, _lease_ms()])
        return None if found is None else Lease(self, found[0].decode(), token, int(found[1]))

    async def ask_cancel(self, batch_id: str) -> bool:
        """Asks whoever works on a batch to end it; False if it is too late for that.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        return await self._moved(batch_id, "", "cancelling", ("validating", "in_progress"), {}) > 0

    async def places(self, batch_id: str, numbers: Sequence[int]) -> list[Place | None]:
        """Where the results of lines are; None for each line that is not done.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        if not numbers:
            return []
        with unavailable("batches"):
            found = cast("list[bytes | None]", await self._redis.hmget(_lines_key(batch_id), [str(n) for n in numbers]))
        return [None if text is None else Place.unpacked(text) for text in found]

    async def _moved(
        self, batch_id: str, token: str, to: Status, origins: Sequence[Status], fields: Mapping[str, str]
    ) -> int:
        pairs = [part for pair in fields.items() for part in pair]
        with unavailable("batches"):
            done = await self._move(
                keys=[_key(batch_id)],
                args=[PREFIX, token, to, str(int(time.time())), str(len(origins)), *origins, *pairs],
            )
        return int(done)


class Lease:
    """The right to work on a batch. Once it is lost nothing can be written by it.

    Attributes:
        batch_id: Which.
        epoch: How often the batch has been taken, this time included.
    """

    def __init__(self, store: BatchStore, batch_id: str, token: str, epoch: int) -> None:
        self._store = store
        self._token = token
        self.batch_id = batch_id
        self.epoch = epoch

    async def renew(self) -> Status:
        """Keeps the lease and tells the status, which others may change.

        Raises:
            LeaseLost: Somebody else has it.
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            status = await self._store._renew(keys=[_key(self.batch_id)], args=[PREFIX, self._token, _lease_ms()])
        if status is None:
            raise LeaseLost
        return cast("Status", status.decode())

    async def release(self) -> None:
        """Gives the batch back: another worker may take it at once.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            await self._store._release(keys=[_key(self.batch_id)], args=[PREFIX, self._token])

    async def move(self, to: Status, origins: Sequence[Status], **fields: str) -> bool:
        """Changes the status; False if it is none of `origins` any more.

        Raises:
            LeaseLost: Somebody else has the lease.
            StoreUnavailable: Redis did not answer.
        """
        done = await self._store._moved(self.batch_id, self._token, to, origins, fields)
        if done < 0:
            raise LeaseLost
        return done > 0

    async def record(self, results: Sequence[tuple[int, Place, LineUsage]]) -> None:
        """Notes lines as done, each once, with what they have used.

        Raises:
            LeaseLost: Somebody else has the lease; nothing was written.
            StoreUnavailable: Redis did not answer.
        """
        sums = [str(sum(getattr(usage, name) for _, _, usage in results)) for name in _USAGE]
        counters = [part for pair in zip(_USAGE, sums, strict=True) for part in pair]
        lines: list[str] = []
        for number, place, _ in results:
            lines += [str(number), place.packed(), "completed" if place.is_ok else "failed"]
        with unavailable("batches"):
            done = await self._store._record(
                keys=[_key(self.batch_id), _lines_key(self.batch_id)],
                args=[PREFIX, self._token, str(len(_USAGE)), *counters, *lines],
            )
        if not done:
            raise LeaseLost

    async def finish(self, status: Status, files: Sequence[FileRecord], **fields: str) -> None:
        """Ends the batch: its files are there and it says so, in one step.

        Raises:
            LeaseLost: Somebody else has the lease; nothing was written.
            StoreUnavailable: Redis did not answer.
        """
        pairs = [part for pair in fields.items() for part in pair]
        told = [part for record in files for part in record.arguments()]
        with unavailable("batches"):
            done = await self._store._finish(
                keys=[_key(self.batch_id), _lines_key(self.batch_id)],
                args=[
                    PREFIX,
                    self.batch_id,
                    self._token,
                    status,
                    str(int(time.time())),
                    str(len(fields)),
                    *pairs,
                    *told,
                ],
            )
        if not done:
            raise LeaseLost


def _key(batch_id: str) -> str:
    return f"{PREFIX}b:{batch_id}"


def _lines_key(batch_id: str) -> str:
    return f"{PREFIX}bl:{batch_id}"


def _lease_ms() -> str:
    return str(int(LEASE_S * 1000))
