"""Records that outlive one request, in any Redis: responses, conversations, events of responses.

Bounded by count, by bytes and by age; the record that was written longest ago goes first. Every worker of a server
sees the same records. A record belongs to an owner, and to everybody else it is not there.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec
from redis.exceptions import RedisError

from gateway.errors import StoreUnavailable
from gateway.state import scripts
from gateway.state.link import connect

PREFIX = "{wye}:"
"""Of every key; one hash tag, so that a cluster keeps them in one place."""

ALIVE_MS = 10_000
"""A response that runs in the background is given up when its worker has said nothing for so long."""

EVENT_WAIT_MS = 1000
"""How long a reader of events waits for news before it looks whether the worker is still there."""

_MAX_FOLLOWERS = 1024
_COMPRESSED = b"\x00"
"""First byte of compressed JSON, which plain JSON never begins with."""

_COMPRESS_BYTES = 1024
"""Shorter values are stored as they are."""

_RAW = frozenset({"owner", "kind", "status"})
"""Fields that scripts look into: text, not JSON."""

Kind = Literal["response", "conversation"]
Mode = Literal["create", "update", "settle"]


class TooLargeToStore(Exception):
    """One record alone is larger than the whole store may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """How much is kept.

    Attributes:
        count: Records.
        bytes: Of all records together, as stored.
        ttl_s: Since the last write of a record.
    """

    count: int
    bytes: int
    ttl_s: int


class ResponseStore:
    """The store. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis, see `gateway.state.address`.
        bounds: How much is kept.
    """

    def __init__(self, url: str, bounds: Bounds) -> None:
        self._redis = connect(url)
        # Readers of events wait inside Redis, each on a connection of its own.
        self._followers = connect(url, max_connections=_MAX_FOLLOWERS)
        self._bounds = [str(bounds.ttl_s * 1000), str(bounds.count), str(bounds.bytes)]
        register = self._redis.register_script
        self._put = register(scripts.PUT)
        self._read = register(scripts.READ)
        self._drop = register(scripts.DROP)
        self._add_items = register(scripts.ADD_ITEMS)
        self._drop_item = register(scripts.DROP_ITEM)
        self._add_events = register(scripts.ADD_EVENTS)

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
        with _unavailable():
            await self._redis.ping()

    async def put(
        self, record_id: str, fields: Mapping[str, Any], *, mode: Mode = "create", item_ids: Sequence[str] = ()
    ) -> bool:
        """Writes fields of a record, then drops what is too much or too old.

        Args:
            record_id: Which.
            fields: Anything JSON can hold; a new record needs `owner` and `kind`.
            mode: `update` changes only what is there, `settle` only a response that has not ended.
            item_ids: The record is found by these too.

        Returns:
            False if there was nothing to update.

        Raises:
            StoreUnavailable: Redis did not answer.
            TooLargeToStore: The record alone exceeds the bound; nothing was written.
        """
        pairs = [part for name, value in fields.items() for part in (name, _pack(name, value))]
        head = [PREFIX, record_id, *self._bounds, mode, str(scripts.OVERHEAD_BYTES), str(len(fields))]
        with _unavailable():
            done = int(await self._put(keys=[f"{PREFIX}r:{record_id}"], args=[*head, *pairs, *item_ids]))
        if done < 0:
            raise TooLargeToStore
        return done > 0

    async def read(self, record_id: str, owner: str, kind: Kind, *fields: str) -> dict[str, Any] | None:
        """Fields of a record, or None if `owner` has none of that kind and id.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            values = await self._read(
                keys=[f"{PREFIX}r:{record_id}"], args=[PREFIX, self._bounds[0], "owner", "kind", *fields]
            )
        if values is None or [values[0], values[1]] != [owner.encode(), kind.encode()]:
            return None
        return {name: _unpack(name, value) for name, value in zip(fields, values[2:], strict=True)}

    async def drop(self, record_id: str) -> bool:
        """Removes a record and all that belongs to it; False if there was none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            return bool(await self._drop(keys=[f"{PREFIX}r:{record_id}"], args=[PREFIX, record_id]))

    async def add_items(self, record_id: str, items: Sequence[Mapping[str, Any]]) -> bool:
        """Appends items, each with an `id`, to a conversation; False if there is none.

        Raises:
            StoreUnavailable: Redis did not answer.
            TooLargeToStore: The conversation would exceed the bound; nothing was written.
        """
        pairs = [part for item in items for part in (item["id"], msgspec.json.encode(item))]
        with _unavailable():
            done = await self._add_items(
                keys=[f"{PREFIX}r:{record_id}", f"{PREFIX}i:{record_id}"],
                args=[PREFIX, record_id, *self._bounds, *pairs],
            )
        if int(done) < 0:
            raise TooLargeToStore
        return int(done) > 0

    async def items(self, record_id: str) -> list[dict[str, Any]]:
        """All items of a conversation, in order.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            values = cast("list[bytes]", await self._redis.hvals(f"{PREFIX}i:{record_id}"))
        split = sorted((int(number), text) for number, _, text in (value.partition(b":") for value in values))
        return [msgspec.json.decode(text) for _, text in split]

    async def drop_item(self, record_id: str, item_id: str) -> bool:
        """Removes one item of a conversation; False if there was none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            return bool(await self._drop_item(keys=[f"{PREFIX}i:{record_id}"], args=[PREFIX, record_id, item_id]))

    async def holders(self, item_ids: Sequence[str]) -> dict[str, str]:
        """Ids of the records that hold these items, for those that are known.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        if not item_ids:
            return {}
        with _unavailable():
            found = cast("list[bytes | None]", await self._redis.hmget(f"{PREFIX}index", list(item_ids)))
        return {item: holder.decode() for item, holder in zip(item_ids, found, strict=True) if holder is not None}

    async def add_events(self, record_id: str, events: Sequence[bytes]) -> bool:
        """Appends events, each JSON on one line; False if the response is no longer there.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            done = await self._add_events(
                keys=[f"{PREFIX}r:{record_id}", f"{PREFIX}e:{record_id}"],
                args=[PREFIX, record_id, *self._bounds, _compress(b"\n".join(events))],
            )
        return bool(done)

    async def events(self, record_id: str) -> AsyncIterator[list[bytes]]:
        """Events as they come, from the first one; an empty list whenever there is no news for a while.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        key, last = f"{PREFIX}e:{record_id}", b"0"
        while True:
            with _unavailable():
                answer = await self._followers.xread({key: last}, block=EVENT_WAIT_MS)
            entries = _entries(answer)
            if entries:
                last = entries[-1][0]
            yield [line for _, data in entries for line in _decompress(data).split(b"\n")]

    async def beat(self, record_ids: Sequence[str]) -> set[str]:
        """Says that these responses are being worked on; returns those that are to be cancelled.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            async with self._redis.pipeline(transaction=False) as pipe:
                for record_id in record_ids:
                    pipe.set(f"{PREFIX}alive:{record_id}", "1", px=ALIVE_MS)
                    pipe.exists(f"{PREFIX}cancel:{record_id}")
                answers = await pipe.execute()
        return {record_id for record_id, asked in zip(record_ids, answers[1::2], strict=True) if asked}

    async def is_alive(self, record_id: str) -> bool:
        """True while a worker says that it works on the response.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            return bool(await self._redis.exists(f"{PREFIX}alive:{record_id}"))

    async def ask_cancel(self, record_id: str) -> None:
        """Asks whoever works on the response to end it.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            await self._redis.set(f"{PREFIX}cancel:{record_id}", "1", px=2 * ALIVE_MS)

    async def forget_run(self, record_id: str) -> None:
        """Says that nobody works on the response any more.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with _unavailable():
            await self._redis.delete(f"{PREFIX}alive:{record_id}", f"{PREFIX}cancel:{record_id}")


@contextlib.contextmanager
def _unavailable() -> Iterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"The store of responses does not answer: {type(error).__name__}.") from error


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


def _pack(name: str, value: Any) -> bytes:
    if name in _RAW:
        return str(value).encode()
    return _compress(msgspec.json.encode(value))


def _unpack(name: str, value: bytes | None) -> Any:
    if value is None:
        return None
    return value.decode() if name in _RAW else msgspec.json.decode(_decompress(value))


def _compress(data: bytes) -> bytes:
    return data if len(data) < _COMPRESS_BYTES else _COMPRESSED + zlib.compress(data, 1)


def _decompress(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data.startswith(_COMPRESSED) else data
