"""/v1/organization/projects/{id}/rate_limits: rates as OpenAI has them, in one entry that counts for all models."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.errors import NotFound
from gateway.openapi import takes
from gateway.routes.admin.common import page_of, read_change, tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.reading import readable
from gateway.schemas.admin import RateLimitUpdate
from gateway.services import ServicesDep
from gateway.tenancy.directory import Tenant
from gateway.tenancy.limits import MAX_RATE

router = APIRouter()

PATH = "/v1/organization/projects/{project_id}/rate_limits"
LIMIT_ID = "rl-all"


@readable(router, PATH)
async def list_rate_limits(project_id: str, services: ServicesDep) -> Response:
    """Lists the one entry."""
    tenant = await tenancy_of(services).directory.tenant(project_id)
    return json_response(page_of([_body(tenant)], limit=1, after=None))


@router.post(PATH + "/{rate_limit_id}", openapi_extra=takes(RateLimitUpdate))
async def update_rate_limit(project_id: str, rate_limit_id: str, request: Request, services: ServicesDep) -> Response:
    """Changes requests and tokens per minute; null takes a limit away."""
    directory = tenancy_of(services).directory
    if rate_limit_id != LIMIT_ID:
        message = f"No rate limit has the id '{rate_limit_id[:100]}'; the only one is '{LIMIT_ID}'."
        raise NotFound(message, "rate_limit_id")
    body, given = await read_change(request, RateLimitUpdate)
    tenant = await directory.tenant(project_id)
    changes = {
        own: getattr(body, name)
        for name, own in (
            ("max_requests_per_1_minute", "requests_per_minute"),
            ("max_tokens_per_1_minute", "tokens_per_minute"),
        )
        if name in given
    }
    limits = tenant.limits.model_copy(update=changes)
    tenant = await directory.change_tenant(who(request), project_id, limits=limits, version=tenant.version)
    return json_response(_body(tenant))


def _body(tenant: Tenant) -> dict[str, Any]:
    limits = tenant.limits
    return {
        "id": LIMIT_ID,
        "object": "project.rate_limit",
        "model": "*",
        # SDKs expect a number; the largest that could be set stands for none.
        "max_requests_per_1_minute": limits.requests_per_minute or MAX_RATE,
        "max_tokens_per_1_minute": limits.tokens_per_minute or MAX_RATE,
    }
