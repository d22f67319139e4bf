"""What administrators look at: tenants with what they have used, hold and may use; refusals; the audit. Reads alone.

A page shows these as they are; the routes of the API return the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.state.tenancy import Record
from gateway.tenancy.directory import Tenant
from gateway.tenancy.windows import rolling_s

if TYPE_CHECKING:
    from gateway.tenancy.build import Tenancy


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineShare:
    """What one engine says of a tenant.

    Attributes:
        name: Of the engine.
        level_kib: Memory now.
        granted_kib_seconds: That it may still use.
        heard_at: In seconds.
    """

    name: str
    level_kib: int
    granted_kib_seconds: float
    heard_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantOverview:
    """A tenant now.

    Attributes:
        tenant: Its record.
        used_kib_seconds: In the window, as engines have reported it.
        used_estimate: The same, up to now.
        held_kib_seconds: Of what remains, granted to engines.
        remaining_kib_seconds: Of the quota, granted or not; None without one.
        life_kib_seconds: Ever.
        level_kib: Memory now.
        peak_kib: Most of it in the window.
        window_begins_at: In seconds; 0 if nobody has said.
        window_ends_at: In seconds, of a rolling window when the next part of it leaves; 0 if nobody has said.
        num_running: Requests in flight.
        engines: That hold something of it.
    """

    tenant: Tenant
    used_kib_seconds: float
    used_estimate: float
    held_kib_seconds: float
    remaining_kib_seconds: float | None
    life_kib_seconds: float
    level_kib: int
    peak_kib: int
    window_begins_at: int
    window_ends_at: int
    num_running: int
    engines: tuple[EngineShare, ...]


async def tenants_overview(tenancy: Tenancy, *, archived: bool = False) -> list[TenantOverview]:
    """All tenants, oldest first.

    Raises:
        QuotaStoreUnavailable: Redis did not answer.
    """
    return [await _overview(tenancy, one) for one in await tenancy.directory.tenants(archived=archived)]


async def tenant_overview(tenancy: Tenancy, tenant_id: str) -> TenantOverview:
    """One tenant.

    Raises:
        NotFound: There is none of that id.
        QuotaStoreUnavailable: Redis did not answer.
    """
    return await _overview(tenancy, await tenancy.directory.tenant(tenant_id))


async def recent_denials(tenancy: Tenancy, *, tenant_id: str = "", limit: int = 50) -> list[dict[str, Any]]:
    """What was refused lately, newest first; only of one tenant if that is named.

    Raises:
        QuotaStoreUnavailable: Redis did not answer.
    """
    found = [_denial(one) for one in await tenancy.store.stream("denials", limit=1000)]
    return [one for one in found if not tenant_id or one["project_id"] == tenant_id][:limit]


async def audit_tail(tenancy: Tenancy, limit: int = 50) -> list[dict[str, Any]]:
    """Newest lines of the audit: `id`, `at`, `type`, `actor`, `target`, `details`.

    Raises:
        QuotaStoreUnavailable: Redis did not answer.
    """
    return [{"id": line_id} | line for line_id, line in await tenancy.store.audit(limit=limit)]


async def _overview(tenancy: Tenancy, tenant: Tenant) -> TenantOverview:
    account = await tenancy.store.account(tenant.id)
    engines = tuple(_share(name, one) for name, one in (await tenancy.quotas.engines(tenant.id)).items())
    used, held = _sum(account, "used"), int(account.get("held", 0)) / 1000
    ends_ms = int(account.get("win_end", 0))
    if 0 < ends_ms <= time.time() * 1000 and rolling_s(tenant.limits.kv_window) is None:
        # The window is over; the next report begins the next one.
        used, ends_ms = 0.0, 0
    limit = tenant.limits.kv_kib_seconds
    now_s = time.time()
    running = sum(one.level_kib * min(max(0.0, now_s - one.heard_at), 10.0) for one in engines)
    return TenantOverview(
        tenant=tenant,
        used_kib_seconds=used,
        used_estimate=used + running,
        held_kib_seconds=held,
        remaining_kib_seconds=None if limit is None else max(0.0, limit - used),
        life_kib_seconds=_sum(account, "life"),
        level_kib=int(account.get("level", 0)),
        peak_kib=int(account.get("peak", 0)),
        window_begins_at=int(account.get("win_begin", 0)) // 1000,
        window_ends_at=ends_ms // 1000,
        num_running=await tenancy.store.num_running(tenant.id),
        engines=engines,
    )


def _share(name: str, record: Record) -> EngineShare:
    return EngineShare(
        name=name,
        level_kib=int(record.get("level", 0)),
        granted_kib_seconds=int(record.get("grant", 0)) / 1000,
        heard_at=int(record.get("at", 0)) / 1000,
    )


def _denial(entry: Record) -> dict[str, Any]:
    return {
        "id": entry["id"],
        "at": int(entry["id"].partition("-")[0]) // 1000,
        "project_id": entry["tenant"],
        "api_key_id": entry["key"] or None,
        "reason": entry["verdict"],
        "limit_source": entry["source"],
        "limit": int(entry["limit"]),
        "used": int(entry["used"]),
        "shadow": entry["shadow"] == "1",
    }


def _sum(account: Record, name: str) -> float:
    return int(account.get(f"{name}_s", 0)) + int(account.get(f"{name}_r", 0)) / 1000
