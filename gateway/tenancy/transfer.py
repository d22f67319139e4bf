"""The whole configuration as one file: out, and in again. Secrets are in it only as what they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gateway.errors import BadRequest, Conflict
from gateway.schemas.admin import ConfigurationFile, KeyEntry, TenantEntry
from gateway.state.tenancy import Record, TenancyStore
from gateway.tenancy.directory import audit_line, checked_name, scopes_text
from gateway.tenancy.limits import KeyLimits, TenantLimits, reason_of
from gateway.tenancy.principal import ALL_SCOPES, Principal

VERSION = 1


@dataclass(slots=True)
class Changes:
    """What an import did, or would do: ids by what becomes of them."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)


async def export_configuration(store: TenancyStore) -> dict[str, Any]:
    """All tenants, limits and keys, in the order of their ids: the same configuration is the same file.

    Raises:
        QuotaStoreUnavailable: Redis did not answer.
    """
    tenants = [
        {
            "id": tenant_id,
            "name": record["name"],
            "created_at": int(record["created"]),
            "limits": {"state": record["state"], **TenantLimits.of(record).model_dump(exclude_none=True)},
            "keys": [_key_entry(key_id, key) for key_id, key in sorted(await store.keys(tenant_id))],
        }
        for tenant_id, record in sorted(await store.tenants())
    ]
    admin_keys = [_key_entry(key_id, key) for key_id, key in sorted(await store.keys(""))]
    return {"object": "wye.tenants", "version": VERSION, "tenants": tenants, "admin_keys": admin_keys}


async def import_configuration(
    store: TenancyStore, by: Principal, file: ConfigurationFile, *, dry_run: bool
) -> Changes:
    """Makes what is in a file, and changes what is there already; what is not in it stays.

    Everything is checked before anything is written. The same file again changes nothing.

    Args:
        store: Of the records.
        by: Who asked for it.
        file: What is to be.
        dry_run: Only say what would change.

    Raises:
        BadRequest: Something in it is wrong.
        Conflict: A key belongs to another tenant, or a tenant is archived here and not in the file.
        QuotaStoreUnavailable: Redis did not answer.
    """
    _check_once(file)
    tenants = {one.id: _tenant_fields(one, f"tenants[{place}]") for place, one in enumerate(file.tenants)}
    placed = list(_placed_keys(file))
    keys = [(one.id, tenant_id, _key_fields(one, tenant_id, at)) for at, tenant_id, one in placed]
    old_keys = {key_id: await store.key(key_id) for key_id, _, _ in keys}
    for at, tenant_id, one in placed:
        old = old_keys[one.id]
        if old is not None and old.get("tenant", "") != tenant_id:
            raise Conflict(f"The key '{one.id}' belongs to another tenant.", f"{at}.id")
    old_tenants = {tenant_id: await store.tenant(tenant_id) for tenant_id in tenants}
    for place, (tenant_id, fields) in enumerate(tenants.items()):
        old = old_tenants[tenant_id]
        if old is not None and old["state"] == "archived" != fields["state"]:
            message = f"The tenant '{tenant_id}' is archived here, and cannot be made active again."
            raise Conflict(message, f"tenants[{place}].limits.state")
    changes = Changes()
    for tenant_id, fields in tenants.items():
        old = old_tenants[tenant_id]
        if _note(changes, tenant_id, old, fields) and not dry_run:
            audit = audit_line(by, "project.created" if old is None else "project.updated", tenant_id, {"import": True})
            await store.write_tenant("create" if old is None else "update", tenant_id, fields, audit)
    for key_id, tenant_id, fields in keys:
        old = old_keys[key_id]
        if _note(changes, key_id, old, fields) and not dry_run:
            told = {"import": True, "project_id": tenant_id}
            audit = audit_line(by, "api_key.created" if old is None else "api_key.updated", key_id, told)
            await store.write_key("create" if old is None else "update", key_id, tenant_id, fields, audit)
    return changes


def _note(changes: Changes, record_id: str, old: Mapping[str, str] | None, fields: Record) -> bool:
    if old is None:
        changes.created.append(record_id)
    elif all(old.get(name, "") == value for name, value in fields.items()):
        changes.unchanged.append(record_id)
        return False
    else:
        changes.updated.append(record_id)
    return True


def _check_once(file: ConfigurationFile) -> None:
    seen: set[str] = set()
    places = [(f"tenants[{place}]", one.id) for place, one in enumerate(file.tenants)]
    for at, one in [*places, *((at, key.id) for at, _, key in _placed_keys(file))]:
        if one in seen:
            raise BadRequest(f"'{one}' is in the file more than once.", f"{at}.id")
        seen.add(one)


def _placed_keys(file: ConfigurationFile) -> Iterator[tuple[str, str, KeyEntry]]:
    """Every key with its path in the file, and whose it is; an administrator's is nobody's."""
    for place, tenant in enumerate(file.tenants):
        for number, key in enumerate(tenant.keys):
            yield f"tenants[{place}].keys[{number}]", tenant.id, key
    for number, key in enumerate(file.admin_keys):
        yield f"admin_keys[{number}]", "", key


@contextmanager
def _inside(at: str) -> Iterator[None]:
    """Errors of a part of the file name its field by the path in the file."""
    try:
        yield
    except BadRequest as error:
        error.param = f"{at}.{error.param}"
        raise


def _tenant_fields(entry: TenantEntry, at: str) -> Record:
    limits = entry.limits.model_dump(exclude_none=True, exclude={"state"})
    try:
        fields = TenantLimits.model_validate(limits).fields()
    except ValidationError as error:
        param = f"{at}.limits.kv_window"
        raise BadRequest(f"Invalid '{param}': {reason_of(error)}.", param) from None
    state = entry.limits.state or "active"
    with _inside(at):
        return {"name": checked_name(entry.name), "state": state, "created": str(entry.created_at), **fields}


def _key_fields(entry: KeyEntry, tenant_id: str, at: str) -> Record:
    with _inside(at):
        # What has no scope by mistake must not become a key that may do all.
        scopes = scopes_text(() if entry.scopes in ("", ALL_SCOPES) else entry.scopes.split(" ")) if tenant_id else ""
        checked_name(entry.name)
    return {
        "hash": entry.hash,
        "tail": entry.tail,
        "tenant": tenant_id,
        "name": entry.name,
        "scopes": scopes,
        "created": str(entry.created_at),
        "expires": str(entry.expires_at * 1000) if entry.expires_at else "",
        "disabled": "1" if entry.disabled else "",
        "account": entry.service_account,
        **KeyLimits.model_validate(entry.limits.model_dump(exclude_none=True)).fields(),
    }


def _key_entry(key_id: str, record: Record) -> dict[str, Any]:
    return {
        "id": key_id,
        "name": record["name"],
        "hash": record["hash"],
        "tail": record["tail"],
        "scopes": record.get("scopes", ""),
        "disabled": record.get("disabled") == "1",
        "created_at": int(record["created"]),
        "expires_at": int(record.get("expires") or 0) // 1000,
        "service_account": record.get("account", ""),
        "limits": KeyLimits.of(record).model_dump(exclude_none=True),
    }
