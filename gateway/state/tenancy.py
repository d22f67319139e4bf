"""Tenants, their keys and the audit of all changes, in any Redis. Nothing is cached: a change holds on all workers."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gateway.errors import QuotaStoreUnavailable
from gateway.state import tenancy_scripts

PREFIX = "{wye}:q:"
"""Of every key of tenants; in the same place of a cluster as all else."""

Record = dict[str, str]
Mode = Literal["create", "update", "delete"]


@contextlib.contextmanager
def quota_store() -> Iterator[None]:
    """Turns failures of Redis into `QuotaStoreUnavailable`.

    Raises:
        QuotaStoreUnavailable: Redis did not answer.
    """
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise QuotaStoreUnavailable(f"The store of quotas does not answer: {type(error).__name__}.") from error


class TenancyStore:
    """Records of tenants and keys. Every method raises `QuotaStoreUnavailable` if Redis does not answer.

    Args:
        redis: The caller closes it.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._write = redis.register_script(tenancy_scripts.WRITE)

    async def tenant(self, tenant_id: str) -> Record | None:
        """The record of a tenant, or None."""
        return await self._read(_tenant(tenant_id))

    async def tenants(self) -> list[tuple[str, Record]]:
        """Ids and records of all tenants, oldest first."""
        return await self._list("tenants", _tenant)

    async def num_tenants(self) -> int:
        """How many tenants there are, archived ones included."""
        with quota_store():
            return int(await self._redis.zcard(f"{PREFIX}tenants"))

    async def key(self, key_id: str) -> Record | None:
        """The record of a key, or None."""
        return await self._read(_key(key_id))

    async def keys(self, tenant_id: str) -> list[tuple[str, Record]]:
        """Ids and records of a tenant's keys, oldest first; those of administrators for an empty id."""
        return await self._list(f"keys:{tenant_id}", _key)

    async def seen(self, key_ids: Sequence[str]) -> dict[str, int]:
        """When each key was last used, in seconds; those that never were are left out."""
        if not key_ids:
            return {}
        with quota_store():
            found = await self._redis.hmget(f"{PREFIX}seen", list(key_ids))
        return {key_id: int(at) for key_id, at in zip(key_ids, found, strict=True) if at is not None}

    async def write_tenant(
        self, mode: Mode, tenant_id: str, fields: Mapping[str, str], audit: Mapping[str, Any], version: str = ""
    ) -> int:
        """Changes a tenant: 1, or 0 if there is none, or -1 if it is there already or is not of `version`."""
        done = await self._change(mode, tenant_id, _tenant(tenant_id), "tenants", fields, audit, version)
        if done > 0 and "kv" in fields:
            # Which engines are told of the tenant before it has used anything; wrong for a moment does no harm.
            with quota_store():
                change = self._redis.sadd if fields["kv"] else self._redis.srem
                await change(f"{PREFIX}limited", tenant_id)
        return done

    async def write_key(
        self,
        mode: Mode,
        key_id: str,
        tenant_id: str,
        fields: Mapping[str, str],
        audit: Mapping[str, Any],
        version: str = "",
    ) -> int:
        """Changes a key of a tenant, as `write_tenant` does."""
        return await self._change(mode, key_id, _key(key_id), f"keys:{tenant_id}", fields, audit, version)

    async def note(self, audit: Mapping[str, Any]) -> None:
        """Adds a line to the audit."""
        with quota_store():
            await self._redis.xadd(f"{PREFIX}audit", {"d": msgspec.json.encode(audit)})

    async def audit(self, before: str = "", limit: int = 100) -> list[tuple[str, dict[str, Any]]]:
        """Lines of the audit with their ids, newest first.

        Args:
            before: Id of a line; only older ones are returned.
            limit: Most lines.
        """
        with quota_store():
            found: Any = await self._redis.xrevrange(f"{PREFIX}audit", f"({before}" if before else "+", "-", limit)
        return [(_text(at), msgspec.json.decode(fields[b"d"])) for at, fields in found]

    async def stream(self, name: Literal["denials", "ledger"], before: str = "", limit: int = 100) -> list[Record]:
        """Entries of a stream, newest first, each with its `id`."""
        with quota_store():
            found: Any = await self._redis.xrevrange(f"{PREFIX}{name}", f"({before}" if before else "+", "-", limit)
        return [{"id": _text(at)} | _record(fields) for at, fields in found]

    async def account(self, tenant_id: str) -> Record:
        """The KV account of a tenant; empty if it has none yet."""
        return await self._read(f"acct:{tenant_id}") or {}

    async def num_running(self, tenant_id: str) -> int:
        """Requests of a tenant in flight."""
        with quota_store():
            return int(await self._redis.zcount(f"{PREFIX}slots:t:{tenant_id}", int(time.time() * 1000), "+inf"))

    async def usage(self, tenant_id: str, days: Sequence[str]) -> dict[str, Record]:
        """What a tenant used on some days (`YYYYMMDD`), as the scripts wrote it."""
        with quota_store():
            pipe = self._redis.pipeline(transaction=False)
            for day in days:
                pipe.hgetall(f"{PREFIX}use:{tenant_id}:{day}")
            found = await pipe.execute()
        return {day: _record(fields) for day, fields in zip(days, found, strict=True)}

    async def _read(self, name: str) -> Record | None:
        with quota_store():
            found = await self._redis.hgetall(f"{PREFIX}{name}")
        return _record(found) if found else None

    async def _list(self, directory: str, named: Any) -> list[tuple[str, Record]]:
        with quota_store():
            ids = [_text(one) for one in await self._redis.zrange(f"{PREFIX}{directory}", 0, -1)]
            pipe = self._redis.pipeline(transaction=False)
            for one in ids:
                pipe.hgetall(f"{PREFIX}{named(one)}")
            found = await pipe.execute() if ids else []
        return [(one, _record(fields)) for one, fields in zip(ids, found, strict=True) if fields]

    async def _change(
        self,
        mode: Mode,
        record_id: str,
        name: str,
        directory: str,
        fields: Mapping[str, str],
        audit: Mapping[str, Any],
        version: str,
    ) -> int:
        pairs = [part for pair in fields.items() for part in pair]
        line = msgspec.json.encode(audit)
        with quota_store():
            done = await self._write(
                keys=[f"{PREFIX}{one}" for one in (name, directory, "audit", f"done:{uuid.uuid4().hex}")],
                args=[mode, record_id, version, str(time.time_ns() // 1_000_000), line, *pairs],
            )
        return int(done)


def _tenant(tenant_id: str) -> str:
    return f"tenant:{tenant_id}"


def _key(key_id: str) -> str:
    return f"key:{key_id}"


def _record(fields: Mapping[Any, Any]) -> Record:
    return {_text(name): _text(value) for name, value in fields.items()}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else cast("str", value)
