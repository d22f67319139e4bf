"""/v1/admin/kv_limits: all limits of tenants with what they use now, and corrections of it."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.errors import BadRequest
from gateway.openapi import takes
from gateway.routes.admin.common import changed_limits, page_of, read_change, tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.reading import readable
from gateway.schemas.admin import AdjustRequest, TenantUpdate
from gateway.services import ServicesDep, read_body
from gateway.tenancy.overview import TenantOverview, tenant_overview, tenants_overview

router = APIRouter()

PATH = "/v1/admin/kv_limits"


@readable(router, PATH)
async def list_kv_limits(
    services: ServicesDep,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
    include_archived: bool = False,
) -> Response:
    """Lists tenants with their limits and what they use."""
    found = await tenants_overview(tenancy_of(services), archived=include_archived)
    return json_response(page_of([limits_body(one) for one in found], limit=limit, after=after))


@readable(router, PATH + "/{project_id}")
async def get_kv_limits(project_id: str, services: ServicesDep) -> Response:
    """Tells limits of a tenant and what it uses."""
    return json_response(limits_body(await tenant_overview(tenancy_of(services), project_id)))


@router.post(PATH + "/{project_id}", openapi_extra=takes(TenantUpdate))
async def update_kv_limits(project_id: str, request: Request, services: ServicesDep) -> Response:
    """Changes limits or the state of a tenant; from the next request on. Null takes a limit away."""
    tenancy = tenancy_of(services)
    body, given = await read_change(request, TenantUpdate)
    if body.state == "archived":
        raise BadRequest("A tenant is archived at /v1/organization/projects/{id}/archive.", "state")
    tenant = await tenancy.directory.tenant(project_id)
    limits = changed_limits(tenant.limits, body, given)
    await tenancy.directory.change_tenant(
        who(request),
        project_id,
        state=body.state,
        limits=None if limits == tenant.limits else limits,
        version=tenant.version,
    )
    return json_response(limits_body(await tenant_overview(tenancy, project_id)))


@router.post(PATH + "/{project_id}/adjust", openapi_extra=takes(AdjustRequest))
async def adjust_usage(project_id: str, request: Request, services: ServicesDep) -> Response:
    """Corrects what a tenant used in its window; the audit keeps the reason."""
    tenancy = tenancy_of(services)
    body = await read_body(request, AdjustRequest)
    await tenancy.directory.tenant(project_id)
    audit = {
        "at": int(time.time()),
        "type": "quota.adjusted",
        "actor": who(request).key_id or "admin_key",
        "target": project_id,
        "details": {"kib_seconds": body.kib_seconds, "reason": body.reason},
    }
    await tenancy.quotas.adjust(project_id, body.kib_seconds, audit, body.operation)
    return json_response(limits_body(await tenant_overview(tenancy, project_id)))


def limits_body(one: TenantOverview) -> dict[str, Any]:
    """A tenant's limits, and what it uses of them."""
    tenant = one.tenant
    return {
        "id": tenant.id,
        "object": "kv_limit",
        "project_id": tenant.id,
        "name": tenant.name,
        "state": tenant.state,
        "limits": tenant.limits.model_dump(),
        "usage": usage_body(one),
        "engines": [
            {
                "name": engine.name,
                "level_kib": engine.level_kib,
                "granted_kib_seconds": engine.granted_kib_seconds,
                "heard_at": engine.heard_at,
            }
            for engine in one.engines
        ],
        "version": tenant.version,
    }


def usage_body(one: TenantOverview) -> dict[str, Any]:
    """What a tenant uses now."""
    return {
        "used_kib_seconds": one.used_kib_seconds,
        "used_estimate_kib_seconds": one.used_estimate,
        "held_kib_seconds": one.held_kib_seconds,
        "remaining_kib_seconds": one.remaining_kib_seconds,
        "life_kib_seconds": one.life_kib_seconds,
        "level_kib": one.level_kib,
        "peak_kib": one.peak_kib,
        "window_begins_at": one.window_begins_at or None,
        "resets_at": one.window_ends_at or None,
        "num_running": one.num_running,
    }
