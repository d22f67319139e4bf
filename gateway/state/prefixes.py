"""Exported prefixes, in any Redis: what it takes to make each again, who may use it, and until when.

The KV itself is the engine's: a record outlives it, and without a record it is reached by nobody.
"""

from __future__ import annotations

import contextlib
import uuid
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from redis.exceptions import RedisError

from engine.contexts.edits import Edit
from gateway.state import prefix_scripts as scripts
from gateway.state.link import connect, unavailable
from gateway.state.owned import owned_key
from gateway.state.prefix_claims import PrefixClaims
from gateway.state.store import PREFIX

WHAT = "prefixes"


class PrefixesFull(Exception):
    """No room; the text says of what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixRecord:
    """One prefix, without its tokens.

    Attributes:
        id: Its id.
        owner: Whose it is.
        key_id: Of the API key that made it; empty if that has none.
        program: Digest of the program that made it; empty if none did.
        name, version: What it is called; versions of a name never change.
        model: Name of the model for clients.
        fingerprint: Of everything that its KV depends on besides the tokens.
        adapter: Name of its adapter.
        num_tokens: How many it has.
        token_sha256: Of them.
        edits: Which of them do not see which others.
        transcript: What is known of it as a conversation.
        export_id: What the engine knows its KV by.
        visibility, allow: Who may use it.
        ttl_ms, ttl_mode: How long it is kept, `sliding` after its last use or `fixed` after its making.
        created_ms, last_used_ms, expires_ms: Times.
        is_expired: Its time is over.
        imports, hit_tokens: How often it was used, and how many tokens needed no computing then.
        metadata: The client's own.
        etag: Changes with every change.
    """

    id: str
    owner: str
    key_id: str
    program: str
    name: str
    version: int
    model: str
    fingerprint: str
    adapter: str
    num_tokens: int
    token_sha256: str
    edits: tuple[Edit, ...]
    transcript: bytes
    export_id: str
    visibility: str
    allow: tuple[str, ...]
    ttl_ms: int
    ttl_mode: str
    created_ms: int
    last_used_ms: int
    expires_ms: int
    is_expired: bool
    imports: int
    hit_tokens: int
    metadata: dict[str, str]
    etag: str


class PrefixStore:
    """All records. Belongs to one event loop; connects when first used.

    Args:
        url: Of a Redis.
        max_prefixes: Of one owner.
        max_bytes: Of everything that one owner has.

    Attributes:
        claims: Names of requests for prefixes.
    """

    def __init__(self, url: str, *, max_prefixes: int, max_bytes: int) -> None:
        self._redis = connect(url)
        self.claims = PrefixClaims(self._redis)
        self._max_prefixes = max_prefixes
        self._max_bytes = max_bytes
        self._create = self._redis.register_script(scripts.CREATE)
        self._read = self._redis.register_script(scripts.READ)
        self._use = self._redis.register_script(scripts.USE)
        self._update = self._redis.register_script(scripts.UPDATE)
        self._delete = self._redis.register_script(scripts.DELETE)

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    async def create(
        self, prefix_id: str, owner: str, name: str, token_ids: Sequence[int], ttl_ms: int, fields: Mapping[str, Any]
    ) -> None:
        """Keeps a prefix; its name is its own from now on.

        Args:
            prefix_id: Its id, made for it.
            owner: Whose it is.
            name: Its name.
            token_ids: Its tokens.
            ttl_ms: How long it is kept.
            fields: The others of `PrefixRecord` that are not counted here.

        Raises:
            PrefixesFull: There is no room.
            StoreUnavailable: Redis did not answer.
        """
        packed = zlib.compress(array("i", token_ids).tobytes(), 1)
        given = [part for field, value in {**fields, "owner": owner}.items() for part in (field, _packed(value))]
        args = [prefix_id, scripts.TOMB_MS, name, packed, ttl_ms, self._max_prefixes, self._max_bytes, *given]
        with unavailable(WHAT):
            done = await self._create(keys=_all_keys(prefix_id, owner), args=args)
        if done < 0:
            most = f"{self._max_prefixes} prefixes" if done == -1 else f"{self._max_bytes} bytes of prefixes"
            raise PrefixesFull(f"at most {most} are kept")

    async def find(self, name: str, owner: str) -> PrefixRecord | None:
        """The newest of a name.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            found = await self._redis.hget(owned_key("pxn", owner), name)
        return None if found is None else await self.read(_text(found).partition(" ")[2])

    async def read(self, prefix_id: str) -> PrefixRecord | None:
        """One prefix, whoever's it is; for a while one whose time is over too.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            now, *flat = await self._read(keys=[_key("px", prefix_id)])
        if not flat:
            return None
        fields = {_text(name): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        return _record(prefix_id, fields, int(now))

    async def token_ids(self, prefix_id: str) -> list[int] | None:
        """The tokens of one, or None if its time is over.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            packed = await self._redis.get(_key("pxt", prefix_id))
        return None if packed is None else array("i", zlib.decompress(cast("bytes", packed))).tolist()

    async def all(self, owner: str) -> list[PrefixRecord]:
        """Those of an owner whose time is not over, newest first.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            ids = await self._redis.zrange(owned_key("pxo", owner), 0, -1)
        found = [await self.read(_text(prefix_id)) for prefix_id in cast("list[bytes]", ids)]
        living = [one for one in found if one is not None and not one.is_expired]
        return sorted(living, key=lambda one: (one.created_ms, one.id), reverse=True)

    async def use(self, record: PrefixRecord, num_hit: int) -> int:
        """Counts a use; returns for how many milliseconds it is kept from now on, 0 if its time is over.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        args: list[str | int] = [record.id, scripts.TOMB_MS, num_hit, uuid.uuid4().hex]
        with unavailable(WHAT):
            return int(await self._use(keys=_own_keys(record), args=args))

    async def update(
        self, record: PrefixRecord, fields: Mapping[str, Any], *, left_ms: int | None = None, etag: str = ""
    ) -> bool | None:
        """Changes a prefix.

        Args:
            record: Which.
            fields: What is to be otherwise.
            left_ms: For how long it is kept from now on; None leaves that as it is.
            etag: That it must have; empty for any.

        Returns:
            False if it has been changed meanwhile, None if it is not there any more.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        given = [part for field, value in fields.items() for part in (field, _packed(value))]
        left = "" if left_ms is None else left_ms
        with unavailable(WHAT):
            args = [record.id, scripts.TOMB_MS, etag, left, uuid.uuid4().hex, *given]
            done = await self._update(keys=_own_keys(record), args=args)
        return None if done == 0 else done == 1

    async def delete(self, record: PrefixRecord) -> None:
        """Forgets one; its name is free.

        Raises:
            StoreUnavailable: Redis did not answer.
        """
        with unavailable(WHAT):
            await self._delete(keys=_all_keys(record.id, record.owner), args=[record.id])


def _record(prefix_id: str, fields: Mapping[str, bytes], now: int) -> PrefixRecord:
    text = {name: _text(value) for name, value in fields.items() if name != "transcript"}
    return PrefixRecord(
        id=prefix_id,
        owner=text["owner"],
        key_id=text["key_id"],
        program=text["program"],
        name=text["name"],
        version=int(text["version"]),
        model=text["model"],
        fingerprint=text["fingerprint"],
        adapter=text["adapter"],
        num_tokens=int(text["num_tokens"]),
        token_sha256=text["token_sha256"],
        edits=msgspec.json.decode(text["edits"], type=tuple[Edit, ...]),
        transcript=bytes(fields["transcript"]),
        export_id=text["export_id"],
        visibility=text["visibility"],
        allow=msgspec.json.decode(text["allow"], type=tuple[str, ...]),
        ttl_ms=int(text["ttl_ms"]),
        ttl_mode=text["ttl_mode"],
        created_ms=int(text["created_ms"]),
        last_used_ms=int(text["last_used_ms"]),
        expires_ms=int(text["expires_ms"]),
        is_expired=int(text["expires_ms"]) <= now,
        imports=int(text["imports"]),
        hit_tokens=int(text["hit_tokens"]),
        metadata=msgspec.json.decode(text["metadata"], type=dict[str, str]),
        etag=text["etag"],
    )


def _packed(value: Any) -> Any:
    return value if isinstance(value, str | bytes | int) else msgspec.json.encode(value)


def _key(kind: str, prefix_id: str) -> str:
    return f"{PREFIX}{kind}:{prefix_id}"


def _own_keys(record: PrefixRecord) -> list[str]:
    return [_key("px", record.id), _key("pxt", record.id), owned_key("pxo", record.owner)]


def _all_keys(prefix_id: str, owner: str) -> list[str]:
    kinds = ("pxn", "pxo", "pxb", "pxs")
    return [_key("px", prefix_id), _key("pxt", prefix_id), *(owned_key(kind, owner) for kind in kinds)]


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
