"""/v1/organization/admin_api_keys: keys of administrators, besides that of the settings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.openapi import takes
from gateway.routes.admin.common import page_of, tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.reading import readable
from gateway.schemas.admin import AdminKeyRequest
from gateway.services import ServicesDep, read_body
from gateway.tenancy.directory import ApiKey

router = APIRouter()

PATH = "/v1/organization/admin_api_keys"


@router.post(PATH, openapi_extra=takes(AdminKeyRequest))
async def create_admin_api_key(request: Request, services: ServicesDep) -> Response:
    """Makes a key. Its value is in this answer and nowhere else."""
    directory = tenancy_of(services).directory
    body = await read_body(request, AdminKeyRequest)
    key, made = await directory.create_key(who(request), "", body.name, ttl_s=body.expires_in_seconds)
    return json_response({**_body(key), "value": made.value})


@readable(router, PATH)
async def list_admin_api_keys(
    services: ServicesDep, after: Annotated[str | None, Query(max_length=200)] = None, limit: Limit = 20
) -> Response:
    """Lists keys, oldest first; their values are not told."""
    found = await tenancy_of(services).directory.keys("")
    return json_response(page_of([_body(one) for one in found], limit=limit, after=after))


@readable(router, PATH + "/{key_id}")
async def get_admin_api_key(key_id: str, services: ServicesDep) -> Response:
    """Describes a key."""
    return json_response(_body(await tenancy_of(services).directory.key("", key_id)))


@router.delete(PATH + "/{key_id}")
async def delete_admin_api_key(key_id: str, request: Request, services: ServicesDep) -> Response:
    """Forgets a key; it opens nothing from now on."""
    await tenancy_of(services).directory.delete_key(who(request), "", key_id)
    return json_response({"id": key_id, "object": "organization.admin_api_key.deleted", "deleted": True})


def _body(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "object": "organization.admin_api_key",
        "name": key.name,
        "redacted_value": key.shown,
        "created_at": key.created_at,
        "expires_at": key.expires_at or None,
        "last_used_at": key.last_used_at or None,
        "owner": {"type": "service_account", "object": "organization.user", "id": None, "name": None, "role": "owner"},
    }
