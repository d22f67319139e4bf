"""Detached runs, in any Redis: what they are, their events and their input, for every worker of a server.

Bounded for each owner by count, by bytes and by age; the run that ended longest ago goes first. A run belongs to
whoever works on it by a token: what lost it can write no more.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.state import run_scripts
from gateway.state.bells import CHANNEL
from gateway.state.link import connect, unavailable
from gateway.state.owned import OP_MS, owned_key
from gateway.state.store import EVENT_WAIT_MS, PREFIX

LEASE_MS = 6_000
"""A run is given up when its worker has said nothing for so long."""

MAX_INPUTS = 1000
MAX_INPUT_BYTES = 4 * 2**20
"""Of one run, over all its time."""

_MAX_FOLLOWERS = 1024
_PARTS = 1000
_WHAT = "runs"

Status = Literal["in_progress", "completed", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBounds:
    """How much is kept.

    Attributes:
        runs: Of one owner.
        bytes: Of all runs of one owner.
        event_bytes: Of the events of one run; the oldest go.
        journal_bytes: Of the journal of one run; with more nobody can go on with it.
        ttl_s: How long a run is kept after its end.
        live_s: Longest that a run takes.
    """

    runs: int
    bytes: int
    event_bytes: int
    ttl_s: int
    live_s: float
    journal_bytes: int = 0

    @property
    def longest_ms(self) -> int:
        """After so long nothing is left of a run that has just begun."""
        return self.ttl_s * 1000 + int(self.live_s * 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """A run as it is stored.

    Attributes:
        id: Which.
        owner: Whose.
        status: How it is.
        head: What was known of it from the beginning; JSON.
        answer: What it came to; JSON, empty before its end.
        error: Why it failed; JSON or None.
        created: Unix time in seconds.
        ended: Unix time in seconds; None before.
        last: Number of its last event; -1 if there is none.
        first: Number of the first event that is still there.
        lives: How often somebody went on with it, after a crash or a stop.
        is_left: It was handed over, and nobody has gone on with it yet.
        is_unwanted: It is to be cancelled.
        parked_s: For how long nobody had gone on with it when it was handed over, all those times together.
        journal_bytes: Of its journal.
        parts: Of its journal, besides what it was begun with.
        fixed: Why nobody can go on with it; empty if that is not so.
    """

    id: str
    owner: str
    status: Status
    head: dict[str, Any]
    answer: dict[str, Any]
    error: dict[str, Any] | None
    created: int
    ended: int | None
    last: int
    first: int
    lives: int = 0
    is_left: bool = False
    is_unwanted: bool = False
    parked_s: float = 0.0
    journal_bytes: int = 0
    parts: int = 0
    fixed: str = ""

    @property
    def is_over(self) -> bool:
        """Nothing more comes of it."""
        return self.status != "in_progress"

    @property
    def is_resumable(self) -> bool:
        """Somebody could go on with it after a crash, or a stop of the server."""
        return not self.is_over and self.journal_bytes > 0 and not self.fixed


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """Events of a run that follow each other.

    Attributes:
        events: JSON, each on one line.
        last: Number of the last of them.
        marks: What gave them out, and how much each.
    """

    events: Sequence[bytes]
    last: int
    marks: Mapping[str, int] = field(default_factory=dict)

    @property
    def data(self) -> bytes:
        """All of them."""
        return b"\n".join(self.events)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a journal.

    Attributes:
        number: Which; those of one run rise.
        data: Some entries; empty for none.
        fixed: Why there are no more of them; empty if there are.
    """

    number: int = 0
    data: bytes = b""
    fixed: str = ""


NO_PART = Part()


class RunStore:
    """The store. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis.
        bounds: How much is kept.
    """

    def __init__(self, url: str, bounds: RunBounds) -> None:
        self._redis: Redis = connect(url)
        # Readers of events wait inside Redis, each on a connection of its own.
        self._followers = connect(url, max_connections=_MAX_FOLLOWERS)
        self.bounds = bounds
        register = self._redis.register_script
        self._create = register(run_scripts.CREATE)
        self._append = register(run_scripts.APPEND)
        self._settle = register(run_scripts.SETTLE)
        self._give_up = register(run_scripts.GIVE_UP)
        self._beat = register(run_scripts.BEAT)
        self._hand_over = register(run_scripts.HAND_OVER)
        self._go_on = register(run_scripts.GO_ON)
        self._overdue = register(run_scripts.OVERDUE)
        self._page = register(run_scripts.PAGE)
        self._input = register(run_scripts.INPUT)
        self._cancel = register(run_scripts.CANCEL)
        self._drop = register(run_scripts.DROP)

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        for redis in (self._redis, self._followers):
            with contextlib.suppress(RedisError, OSError):
                await redis.aclose()

    async def check(self) -> None:
        """Asks whether the store is there.

        Raises:
            StoreUnavailable: It is not.
        """
        with unavailable(_WHAT):
            await self._redis.ping()

    # -- by whoever works on a run ----------------------------------------------------------------------------------

    async def create(self, run_id: str, owner: str, token: str, head: dict[str, Any], origin: bytes = b"") -> bool:
        """Keeps a run that has begun; false if the owner has too many that have not ended.

        Args:
            run_id: Which.
            owner: Whose.
            token: With which it is written.
            head: What is known of it.
            origin: What somebody else needs to begin it again, if it keeps a journal.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        bounds = self.bounds
        most = [str(bounds.runs), str(bounds.bytes), str(bounds.longest_ms)]
        args: list[str | bytes] = [
            PREFIX,
            run_id,
            owner,
            token,
            msgspec.json.encode(head),
            str(LEASE_MS),
            *most,
            origin,
        ]
        with unavailable(_WHAT):
            return bool(await self._create(keys=[run_key(run_id)], args=args))

    async def append(self, run_id: str, token: str, told: Told, part: Part = NO_PART) -> bool:
        """Adds to the journal, and events, in one step; false if the run is gone or somebody else's by now.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        args = [*self._telling(run_id, token, told), str(self.bounds.longest_ms)]
        args += [str(part.number), part.data, part.fixed, msgspec.json.encode(told.marks) if told.marks else b""]
        with unavailable(_WHAT):
            return int(await self._append(keys=[run_key(run_id)], args=args)) > 0

    async def settle(
        self, run_id: str, token: str, told: Told, status: Status, answer: dict[str, Any], error: dict[str, Any] | None
    ) -> bool:
        """Writes down how a run ended, and its last events; false if it is gone or somebody else's by now.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        end = [status, msgspec.json.encode(answer), msgspec.json.encode(error)]
        args = [*self._telling(run_id, token, told), *end, str(self.bounds.ttl_s * 1000), CHANNEL]
        with unavailable(_WHAT):
            return int(await self._settle(keys=[run_key(run_id)], args=args)) > 0

    async def beat(self, runs: Sequence[tuple[str, str]]) -> list[int]:
        """Says that these runs, by id and token, are worked on: 1, or 2 to be cancelled, or 0 if it is lost.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        args = [PREFIX, str(LEASE_MS), *(part for run in runs for part in run)]
        with unavailable(_WHAT):
            return [int(one) for one in await self._beat(keys=[f"{PREFIX}plx"], args=args)]

    async def hand_over(self, run_id: str, token: str) -> bool:
        """Says that a run is not worked on any more, and others are to go on with it; false if they cannot.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        args = [PREFIX, run_id, token, str(self.bounds.longest_ms)]
        with unavailable(_WHAT):
            return bool(await self._hand_over(keys=[run_key(run_id)], args=args))

    async def go_on(self, run_id: str, token: str, most_lives: int, *, is_own: bool) -> int:
        """Says that a run is gone on with from its journal: how many lives that makes, or 0 if it must not be.

        Args:
            run_id: Which.
            token: Of whoever goes on with it.
            most_lives: It is not gone on with more often after a crash.
            is_own: It is who works on it already; else nobody must.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        args = [PREFIX, run_id, token, str(int(is_own)), str(LEASE_MS), str(most_lives)]
        with unavailable(_WHAT):
            return int(await self._go_on(keys=[run_key(run_id)], args=args))

    async def origin(self, run_id: str) -> bytes:
        """What a run was begun with; nothing if it has no journal.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            found = await self._redis.lindex(f"{PREFIX}pj:{run_id}", 0)
        return cast("bytes | None", found) or b""

    async def journal(self, run_id: str) -> tuple[bytes, list[bytes]]:
        """What a run was begun with, and its journal so far; nothing if there is none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        parts: list[bytes] = []
        while True:
            with unavailable(_WHAT):
                start = len(parts)
                more = await self._redis.lrange(f"{PREFIX}pj:{run_id}", start, start + _PARTS - 1)
            parts += cast("list[bytes]", more)
            if len(more) < _PARTS:
                return (parts[0] if parts else b""), parts[1:]

    async def marks(self, run_id: str) -> dict[str, int]:
        """What gave out something that is among the events, and how much.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            found: Any = await self._redis.hgetall(f"{PREFIX}pm:{run_id}")
        return {source.decode(): int(amount) for source, amount in found.items()}

    async def inputs(self, run_id: str, start: int) -> list[bytes]:
        """Input from a place on; at most 16 at a time.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            return cast("list[bytes]", await self._redis.lrange(f"{PREFIX}pi:{run_id}", start, start + 15))

    # -- by whoever looks after runs that nobody works on -----------------------------------------------------------

    async def overdue(self) -> dict[str, bool]:
        """Runs that nobody works on, and of each whether it was handed over.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            found = await self._overdue(keys=[f"{PREFIX}plx"], args=[PREFIX, ""])
        return {run_id.decode(): bool(is_left) for run_id, is_left in zip(found[::2], found[1::2], strict=True)}

    async def give_up(self, run_id: str, told: Told, status: Status, error: dict[str, Any] | None) -> bool:
        """Has a run end that nobody works on; false if that is not so any more.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        args: list[str | bytes] = [PREFIX, run_id, str(told.last), told.data, str(self.bounds.event_bytes)]
        args += [msgspec.json.encode(error), str(self.bounds.ttl_s * 1000), CHANNEL, status]
        with unavailable(_WHAT):
            return bool(await self._give_up(keys=[run_key(run_id)], args=args))

    # -- by everybody -----------------------------------------------------------------------------------------------

    async def find(self, run_id: str) -> RunRecord | None:
        """A run, whoever's it is.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            found: Any = await self._redis.hgetall(run_key(run_id))
        return _record(run_id, found) if found else None

    async def read(self, run_id: str, owner: str) -> RunRecord | None:
        """A run of an owner's, or None.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        record = await self.find(run_id)
        return record if record is not None and record.owner == owner else None

    async def page(self, owner: str, *, after: str | None, limit: int) -> list[RunRecord] | None:
        """Runs of an owner, the newest first; None if `after` is none of them.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            ids = await self._page(keys=[owned_key("prn", owner)], args=[PREFIX, "", owner, after or "", str(limit)])
        if ids is None:
            return None
        found = [await self.read(one.decode(), owner) for one in ids]
        return [record for record in found if record is not None]

    async def add_input(self, run_id: str, owner: str, data: bytes) -> int:
        """Adds input: how many that makes, or 0 without such a run, -1 if it has ended, -2 if it had too many.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        keys = [run_key(run_id), f"{PREFIX}pi:{run_id}", f"{PREFIX}po:{uuid.uuid4().hex}"]
        most = [str(MAX_INPUTS), str(MAX_INPUT_BYTES), str(self.bounds.longest_ms), str(OP_MS), CHANNEL]
        with unavailable(_WHAT):
            return int(await self._input(keys=keys, args=[PREFIX, run_id, owner, data, *most]))

    async def ask_cancel(self, run_id: str) -> None:
        """Asks whoever works on a run to end it.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            await self._cancel(keys=[run_key(run_id)], args=[PREFIX, run_id, CHANNEL])

    async def drop(self, run_id: str) -> bool:
        """Forgets a run; whoever works on it ends it.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(_WHAT):
            return bool(await self._drop(keys=[run_key(run_id)], args=[PREFIX, run_id, CHANNEL]))

    async def events(self, run_id: str) -> AsyncIterator[list[bytes]]:
        """Events as they come, from the first that is there; an empty list whenever there is no news for a while.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        key, last = f"{PREFIX}pe:{run_id}", b"0"
        while True:
            with unavailable(_WHAT):
                answer: Any = await self._followers.xread({key: last}, count=100, block=EVENT_WAIT_MS)
            entries = _entries(answer)
            if entries:
                last = entries[-1][0]
            yield [line for _, data in entries for line in data.split(b"\n")]

    def _telling(self, run_id: str, token: str, told: Told) -> list[str | bytes]:
        most = [str(self.bounds.event_bytes), str(self.bounds.bytes)]
        return [PREFIX, run_id, token, str(told.last), told.data, *most]


def run_key(run_id: str) -> str:
    """The key of a run, which is also its bell."""
    return f"{PREFIX}pr:{run_id}"


def _record(run_id: str, found: dict[bytes, bytes]) -> RunRecord:
    ended = found.get(b"ended")
    return RunRecord(
        id=run_id,
        owner=found[b"owner"].decode(),
        status=cast("Status", found[b"status"].decode()),
        head=msgspec.json.decode(found[b"head"]),
        answer=msgspec.json.decode(found.get(b"answer", b"{}")),
        error=msgspec.json.decode(found.get(b"error", b"null")),
        created=int(found[b"created"]) // 1000,
        ended=None if ended is None else int(ended) // 1000,
        last=int(found[b"last"]),
        first=int(found[b"first"]),
        lives=int(found.get(b"lives", b"0")),
        is_left=b"left" in found,
        is_unwanted=b"cancel" in found,
        parked_s=int(found.get(b"parked", b"0")) / 1000,
        journal_bytes=int(found.get(b"journal_bytes", b"0")),
        parts=int(found.get(b"journal", b"0")),
        fixed=found.get(b"fixed", b"").decode(),
    )


def _entries(answer: Any) -> list[tuple[bytes, bytes]]:
    """Ids and contents of an XREAD's answer, in the shape of either protocol version."""
    if not answer:
        return []
    streams = answer.values() if isinstance(answer, dict) else [entries for _, entries in answer]
    flat: list[tuple[bytes, bytes]] = []
    for entries in streams:
        nested = entries[0] if entries and isinstance(entries[0], list) else entries
        flat += [(entry_id, fields[b"d"]) for entry_id, fields in nested]
    return flat
