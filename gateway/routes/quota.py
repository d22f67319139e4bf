"""GET /v1/quota: what the caller may use, and what is left of it."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.errors import NotFound
from gateway.routes.admin.common import tenancy_of, who
from gateway.routes.admin.tenants import usage_body
from gateway.routes.answering import json_response
from gateway.routes.reading import readable
from gateway.services import ServicesDep
from gateway.tenancy.overview import tenant_overview

router = APIRouter()


@readable(router, "/v1/quota")
async def get_quota(request: Request, services: ServicesDep) -> Response:
    """Tells limits and usage of the tenant that the key belongs to, and limits of the key itself."""
    tenancy, principal = tenancy_of(services), who(request)
    if not principal.tenant:
        raise NotFound("This key belongs to no tenant: nothing limits it.")
    one = await tenant_overview(tenancy, principal.tenant)
    key = await tenancy.directory.key(principal.tenant, principal.key_id)
    return json_response(
        {
            "object": "quota",
            "project_id": one.tenant.id,
            "name": one.tenant.name,
            "state": one.tenant.state,
            "limits": one.tenant.limits.model_dump(),
            "usage": usage_body(one),
            "api_key": {
                "id": key.id,
                "name": key.name,
                "scopes": key.scopes.split(),
                "expires_at": key.expires_at or None,
                "limits": key.limits.model_dump(),
            },
        }
    )
