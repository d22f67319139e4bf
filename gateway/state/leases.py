"""The right to work on a batch: one process has it at a time, and loses it when it is heard of no more."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import cast

from redis.asyncio import Redis

from gateway.state import batch_scripts
from gateway.state.batch_records import USAGE_FIELDS, LineUsage, Place, Status, batch_key, lines_key
from gateway.state.files import FileRecord
from gateway.state.link import unavailable
from gateway.state.store import PREFIX

LEASE_S = 6.0
"""A batch is taken over when whoever works on it has said nothing for so long."""


class LeaseLost(Exception):
    """Somebody else works on the batch now, or it is gone."""


class Leases:
    """Gives leases, and knows what may be done with one.

    Args:
        redis: Holds the batches; the caller closes it.
    """

    def __init__(self, redis: Redis) -> None:
        register = redis.register_script
        self._claim = register(batch_scripts.CLAIM)
        self._move = register(batch_scripts.MOVE)
        self.renewing = register(batch_scripts.RENEW)
        self.releasing = register(batch_scripts.RELEASE)
        self.recording = register(batch_scripts.RECORD)
        self.finishing = register(batch_scripts.FINISH)

    async def claim(self) -> Lease | None:
        """Takes the oldest batch that nobody works on.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        token = uuid.uuid4().hex
        with unavailable("batches"):
            found = await self._claim(keys=[f"{PREFIX}b_open"], args=[PREFIX, token, _lease_ms()])
        return None if found is None else Lease(self, found[0].decode(), token, int(found[1]))

    async def move(
        self, batch_id: str, token: str, to: Status, origins: Sequence[Status], fields: Mapping[str, str]
    ) -> int:
        """Changes the status: 1, or 0 if it is none of `origins`, or -1 if `token` is given and no longer holds.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        pairs = [part for pair in fields.items() for part in pair]
        with unavailable("batches"):
            done = await self._move(
                keys=[batch_key(batch_id)],
                args=[PREFIX, token, to, str(int(time.time())), str(len(origins)), *origins, *pairs],
            )
        return int(done)


class Lease:
    """The right to work on a batch. Once it is lost nothing can be written by it.

    Attributes:
        batch_id: Which.
        epoch: How often the batch has been taken, this time included.
    """

    def __init__(self, leases: Leases, batch_id: str, token: str, epoch: int) -> None:
        self._leases = leases
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
            status = await self._leases.renewing(
                keys=[batch_key(self.batch_id)], args=[PREFIX, self._token, _lease_ms()]
            )
        if status is None:
            raise LeaseLost
        return cast("Status", status.decode())

    async def release(self) -> None:
        """Gives the batch back: another worker may take it at once.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable("batches"):
            await self._leases.releasing(keys=[batch_key(self.batch_id)], args=[PREFIX, self._token])

    async def move(self, to: Status, origins: Sequence[Status], **fields: str) -> bool:
        """Changes the status; False if it is none of `origins` any more.

        Raises:
            LeaseLost: Somebody else has the lease.
            StoreUnavailable: Redis did not answer.
        """
        done = await self._leases.move(self.batch_id, self._token, to, origins, fields)
        if done < 0:
            raise LeaseLost
        return done > 0

    async def record(self, results: Sequence[tuple[int, Place, LineUsage]]) -> None:
        """Notes lines as done, each once, with what they have used.

        Raises:
            LeaseLost: Somebody else has the lease; nothing was written.
            StoreUnavailable: Redis did not answer.
        """
        sums = [str(sum(getattr(usage, name) for _, _, usage in results)) for name in USAGE_FIELDS]
        counters = [part for pair in zip(USAGE_FIELDS, sums, strict=True) for part in pair]
        lines: list[str] = []
        for number, place, _ in results:
            lines += [str(number), place.packed(), "completed" if place.is_ok else "failed"]
        with unavailable("batches"):
            done = await self._leases.recording(
                keys=[batch_key(self.batch_id), lines_key(self.batch_id)],
                args=[PREFIX, self._token, str(len(USAGE_FIELDS)), *counters, *lines],
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
            done = await self._leases.finishing(
                keys=[batch_key(self.batch_id), lines_key(self.batch_id)],
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


def _lease_ms() -> str:
    return str(int(LEASE_S * 1000))
