"""Batches in Redis: made, listed and read; how they are worked on is told in `gateway.state.leases`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from redis.asyncio import Redis

from gateway.state import batch_scripts
from gateway.state.batch_records import Batch, Fixed, Place, Status, batch_key, lines_key
from gateway.state.leases import Lease, Leases
from gateway.state.link import unavailable
from gateway.state.store import PREFIX

MAX_ENDED = 10_000
"""Most batches that have ended and are still told of; the one that ended longest ago goes first."""

_KEPT_MS = 30 * 24 * 3600 * 1000
"""How long those are told of."""


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
        self.leases = Leases(redis)

    async def create(self, batch_id: str, owner: str, fixed: Fixed) -> bool:
        """Stores a new batch; False if too many have not ended.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        head = [PREFIX, batch_id, owner, str(self._max_open), str(MAX_ENDED), str(_KEPT_MS)]
        with unavailable("batches"):
            done = await self._create(
                keys=[batch_key(batch_id)], args=[*head, "fixed", msgspec.json.encode(fixed), "status", "validating"]
            )
        return bool(done)

    async def read(self, batch_id: str, owner: str | None = None) -> Batch | None:
        """A batch, or None if there is none of that id, or `owner` is given and has none.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            found = cast("dict[bytes, bytes]", await self._redis.hgetall(batch_key(batch_id)))
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
        return await self.leases.claim()

    async def ask_cancel(self, batch_id: str) -> bool:
        """Asks whoever works on a batch to end it; False if it is too late for that.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        return await self.leases.move(batch_id, "", "cancelling", ("validating", "in_progress"), {}) > 0

    async def places(self, batch_id: str, numbers: Sequence[int]) -> list[Place | None]:
        """Where the results of lines are; None for each line that is not done.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        if not numbers:
            return []
        with unavailable("batches"):
            found = cast("list[bytes | None]", await self._redis.hmget(lines_key(batch_id), [str(n) for n in numbers]))
        return [None if text is None else Place.unpacked(text) for text in found]
