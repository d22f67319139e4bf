"""Tenants and their keys as an administrator works with them; every change leaves a line in the audit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import BadRequest, Conflict, NotFound
from gateway.state.tenancy import Mode, Record, TenancyStore
from gateway.tenancy.keys import NewKey, make_key, new_id, redacted
from gateway.tenancy.limits import KeyLimits, State, TenantLimits
from gateway.tenancy.principal import ALL_SCOPES, TENANT_MARK, Principal
from gateway.tenancy.scopes import SCOPES

MAX_NAME_CHARS = 200
MAX_TTL_S = 10 * 366 * 24 * 3600
ARCHIVED = "The tenant is archived, which is for good: nothing of it can be changed."
"""Longest life of a key that expires, and longest overlap of a rotation, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenant:
    """Who pays.

    Attributes:
        id: `proj_...`; the label under which all of its things are kept and charged.
        name: For people.
        state: `active`, `shadow` (limits are counted but not enforced), `suspended` or `archived`.
        created_at: In seconds.
        archived_at: In seconds; 0 if it is not.
        limits: What it may use.
        version: Rises with every change.
    """

    id: str
    name: str
    state: State
    created_at: int
    archived_at: int
    limits: TenantLimits
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    """A key of a tenant, or of an administrator.

    Attributes:
        id: `key_...`.
        tenant: Whose; empty for an administrator's.
        name: For people.
        shown: The key without its secret.
        scopes: What it may do.
        is_disabled: It opens nothing.
        created_at: In seconds.
        expires_at: In seconds; 0 for never.
        last_used_at: In seconds; 0 for never.
        overlap_until: Until when the secret before the last rotation still works, in seconds; 0 if it does not.
        account: Service account that it was made for; empty for none.
        limits: Its own, besides those of its tenant.
        version: Rises with every change.
    """

    id: str
    tenant: str
    name: str
    shown: str
    scopes: str
    is_disabled: bool
    created_at: int
    expires_at: int
    last_used_at: int
    overlap_until: int
    account: str
    limits: KeyLimits
    version: str


class Directory:
    """What tenants and keys there are. Every method raises `QuotaStoreUnavailable` if Redis does not answer.

    Args:
        store: Of the records.
    """

    def __init__(self, store: TenancyStore) -> None:
        self._store = store

    async def tenants(self, *, archived: bool = True) -> list[Tenant]:
        """All tenants, oldest first."""
        found = [_read_tenant(tenant_id, record) for tenant_id, record in await self._store.tenants()]
        return [one for one in found if archived or one.state != "archived"]

    async def tenant(self, tenant_id: str) -> Tenant:
        """One tenant.

        Raises:
            NotFound: There is none of that id.
        """
        record = await self._store.tenant(tenant_id) if tenant_id.startswith(TENANT_MARK) else None
        if record is None:
            raise NotFound(f"No tenant has the id '{tenant_id[:100]}'.", "project_id")
        return _read_tenant(tenant_id, record)

    async def create_tenant(
        self,
        by: Principal,
        name: str,
        limits: TenantLimits | None = None,
        *,
        state: State = "active",
        tenant_id: str = "",
    ) -> Tenant:
        """Makes a tenant.

        Args:
            by: Who asked for it.
            name: For people; several tenants may have the same.
            limits: None at all if left out.
            state: Of its beginning.
            tenant_id: Taken over from somewhere else.

        Raises:
            BadRequest: The name is empty or too long.
            Conflict: The id is taken.
        """
        tenant_id = tenant_id or new_id(TENANT_MARK)
        limits = limits or TenantLimits()
        fields = {"name": checked_name(name), "state": state, "created": str(_now_s()), **limits.fields()}
        audit = audit_line(by, "project.created", tenant_id, {"name": name, "state": state, **_told(limits)})
        _check(await self._store.write_tenant("create", tenant_id, fields, audit), tenant_id)
        return await self.tenant(tenant_id)

    async def change_tenant(
        self,
        by: Principal,
        tenant_id: str,
        *,
        name: str | None = None,
        state: State | None = None,
        limits: TenantLimits | None = None,
        version: str = "",
    ) -> Tenant:
        """Changes what is given; it holds from the next request on, on every worker.

        Args:
            by: Who asked for it.
            tenant_id: Which.
            name: For people.
            state: See `Tenant`.
            limits: All of them.
            version: Nothing is changed if it is of another version by now.

        Raises:
            BadRequest: The name is empty or too long.
            Conflict: It is of another version, or archived: that is for good.
            NotFound: There is none of that id.
        """
        tenant = await self.tenant(tenant_id)
        if tenant.state == "archived":
            if state == "archived" and name is None and limits is None:
                return tenant
            raise Conflict(ARCHIVED)
        fields: Record = {} if limits is None else limits.fields()
        told: dict[str, Any] = {} if limits is None else _told(limits)
        if name is not None:
            fields["name"] = told["name"] = checked_name(name)
        if state is not None:
            fields["state"] = told["state"] = state
            fields["archived"] = str(_now_s()) if state == "archived" else ""
            version = version or tenant.version  # it may be archived meanwhile
        kind = "project.updated" if name is not None or state is not None else "rate_limit.updated"
        kind = "project.archived" if state == "archived" else kind
        audit = audit_line(by, kind, tenant_id, told)
        _check(await self._store.write_tenant("update", tenant_id, fields, audit, version), tenant_id)
        return await self.tenant(tenant_id)

    async def keys(self, tenant_id: str) -> list[ApiKey]:
        """Keys of a tenant, oldest first; those of administrators for an empty id.

        Raises:
            NotFound: There is no such tenant.
        """
        if tenant_id:
            await self.tenant(tenant_id)
        found = await self._store.keys(tenant_id)
        seen = await self._store.seen([key_id for key_id, _ in found])
        return [_read_key(key_id, record, seen.get(key_id, 0)) for key_id, record in found]

    async def key(self, tenant_id: str, key_id: str) -> ApiKey:
        """One key of a tenant; an administrator's for an empty id of the tenant.

        Raises:
            NotFound: It has none of that id.
        """
        record = await self._store.key(key_id)
        if record is None or record.get("tenant", "") != tenant_id:
            raise NotFound(f"No API key has the id '{key_id[:100]}'.", "api_key_id")
        return _read_key(key_id, record, (await self._store.seen([key_id])).get(key_id, 0))

    async def create_key(
        self,
        by: Principal,
        tenant_id: str,
        name: str,
        *,
        scopes: Sequence[str] = (),
        ttl_s: int | None = None,
        limits: KeyLimits | None = None,
        account: str = "",
    ) -> tuple[ApiKey, NewKey]:
        """Makes a key; its value is in the answer and nowhere else.

        Args:
            by: Who asked for it.
            tenant_id: Whose; empty for an administrator's.
            name: For people.
            scopes: What it may do; everything if left out.
            ttl_s: Seconds until it expires; never if left out.
            limits: Its own.
            account: Service account that it is for.

        Raises:
            BadRequest: Name, scopes or time are wrong.
            NotFound: There is no such tenant.
        """
        if tenant_id and (await self.tenant(tenant_id)).state == "archived":
            raise Conflict(ARCHIVED)
        made = make_key()
        told = {"name": name, "scopes": scopes_text(scopes), "expires_in_seconds": ttl_s, "project_id": tenant_id}
        fields = {
            "hash": made.digest,
            "tail": made.tail,
            "tenant": tenant_id,
            "name": checked_name(name),
            "scopes": scopes_text(scopes) if tenant_id else "",
            "created": str(_now_s()),
            "expires": "" if ttl_s is None else str((_now_s() + checked_ttl(ttl_s)) * 1000),
            "account": account,
            **(limits or KeyLimits()).fields(),
        }
        audit = audit_line(by, "api_key.created", made.key_id, told)
        _check(await self._store.write_key("create", made.key_id, tenant_id, fields, audit), made.key_id)
        return await self.key(tenant_id, made.key_id), made

    async def change_key(
        self,
        by: Principal,
        tenant_id: str,
        key_id: str,
        *,
        name: str | None = None,
        scopes: Sequence[str] | None = None,
        is_disabled: bool | None = None,
        ttl_s: int | None = None,
        limits: KeyLimits | None = None,
    ) -> ApiKey:
        """Changes what is given; it holds from the next request on, on every worker.

        Raises:
            BadRequest: Name, scopes or time are wrong.
            NotFound: There is no such key.
        """
        await self.key(tenant_id, key_id)
        fields: Record = {} if limits is None else limits.fields()
        told: dict[str, Any] = {} if limits is None else _told(limits)
        if name is not None:
            fields["name"] = told["name"] = checked_name(name)
        if scopes is not None and tenant_id:
            fields["scopes"] = told["scopes"] = scopes_text(scopes)
        if is_disabled is not None:
            fields["disabled"], told["disabled"] = ("1" if is_disabled else ""), is_disabled
        if ttl_s is not None:
            fields["expires"] = str((_now_s() + checked_ttl(ttl_s)) * 1000)
            told["expires_in_seconds"] = ttl_s
        await self._write_key("update", by, "api_key.updated", tenant_id, key_id, fields, told)
        return await self.key(tenant_id, key_id)

    async def rotate_key(self, by: Principal, tenant_id: str, key_id: str, overlap_s: int = 0) -> tuple[ApiKey, NewKey]:
        """Gives a key another secret. The old one works for `overlap_s` seconds more.

        Raises:
            BadRequest: The time is wrong.
            NotFound: There is no such key.
        """
        await self.key(tenant_id, key_id)
        record = await self._store.key(key_id) or {}
        made = make_key(key_id)
        until_ms = (_now_s() + checked_ttl(overlap_s)) * 1000 if overlap_s else 0
        fields = {
            "hash": made.digest,
            "tail": made.tail,
            "old_hash": record.get("hash", "") if until_ms else "",
            "old_until": str(until_ms) if until_ms else "",
        }
        told = {"rotated": True, "overlap_seconds": overlap_s}
        version = record.get("ver", "")
        await self._write_key("update", by, "api_key.updated", tenant_id, key_id, fields, told, version)
        return await self.key(tenant_id, key_id), made

    async def delete_key(self, by: Principal, tenant_id: str, key_id: str) -> None:
        """Forgets a key; it opens nothing from now on.

        Raises:
            NotFound: There is no such key.
        """
        await self.key(tenant_id, key_id)
        await self._write_key("delete", by, "api_key.deleted", tenant_id, key_id, {}, {})

    async def _write_key(
        self,
        mode: Mode,
        by: Principal,
        kind: str,
        tenant_id: str,
        key_id: str,
        fields: Record,
        told: Mapping[str, Any],
        version: str = "",
    ) -> None:
        audit = audit_line(by, kind, key_id, {"project_id": tenant_id, **told})
        _check(await self._store.write_key(mode, key_id, tenant_id, fields, audit, version), key_id)


def checked_name(name: str) -> str:
    """The same name.

    Raises:
        BadRequest: It is empty, too long or has control characters.
    """
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable() or not name.strip():
        raise BadRequest(f"A name must have 1 to {MAX_NAME_CHARS} printable characters.", "name")
    return name


def checked_ttl(seconds: int) -> int:
    """The same time.

    Raises:
        BadRequest: It is not positive, or absurd.
    """
    if not 1 <= seconds <= MAX_TTL_S:
        raise BadRequest(f"A time must be from 1 to {MAX_TTL_S} seconds.", "expires_in_seconds")
    return seconds


def scopes_text(scopes: Sequence[str]) -> str:
    """Scopes as they are stored; no scopes are all.

    Raises:
        BadRequest: There is none of a name.
    """
    for one in scopes:
        if one not in (*SCOPES, ALL_SCOPES):
            raise BadRequest(f"There is no scope '{one[:64]}'; there are {', '.join(SCOPES)}.", "scopes")
    return ALL_SCOPES if not scopes or ALL_SCOPES in scopes else " ".join(dict.fromkeys(scopes))


def _read_tenant(tenant_id: str, record: Record) -> Tenant:
    return Tenant(
        id=tenant_id,
        name=record["name"],
        state=record["state"],  # type: ignore[arg-type]
        created_at=int(record["created"]),
        archived_at=int(record.get("archived") or 0),
        limits=TenantLimits.of(record),
        version=record["ver"],
    )


def _read_key(key_id: str, record: Record, last_used_at: int) -> ApiKey:
    return ApiKey(
        id=key_id,
        tenant=record.get("tenant", ""),
        name=record["name"],
        shown=redacted(key_id, record["tail"]),
        scopes=record.get("scopes", ""),
        is_disabled=record.get("disabled") == "1",
        created_at=int(record["created"]),
        expires_at=int(record.get("expires") or 0) // 1000,
        last_used_at=last_used_at,
        overlap_until=int(record.get("old_until") or 0) // 1000,
        account=record.get("account", ""),
        limits=KeyLimits.of(record),
        version=record["ver"],
    )


def audit_line(by: Principal, kind: str, target: str, details: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit keeps of a change."""
    actor = by.key_id or ("admin_key" if by.is_admin else by.owner)
    return {"at": _now_s(), "type": kind, "actor": actor, "target": target, "details": dict(details)}


def _told(limits: KeyLimits) -> dict[str, Any]:
    return limits.model_dump(exclude_none=True)


def _check(done: int, record_id: str) -> None:
    if done == 0:
        raise NotFound(f"Nothing has the id '{record_id}' any more.")
    if done < 0:
        raise Conflict(f"'{record_id}' is there already, or has been changed meanwhile; read it and try again.")


def _now_s() -> int:
    return int(time.time())
