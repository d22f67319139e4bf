"""/v1/organization/projects/{id}/api_keys as OpenAI has it; making, narrowing and rotating keys at /v1/admin."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.openapi import takes
from gateway.routes.admin.accounts import account_body
from gateway.routes.admin.common import changed_limits, page_of, read_change, tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.reading import readable
from gateway.schemas.admin import KeyRequest, KeyUpdate, RotateRequest
from gateway.services import Services, ServicesDep, read_body
from gateway.tenancy.directory import ApiKey
from gateway.tenancy.keys import NewKey
from gateway.tenancy.limits import KeyLimits

router = APIRouter()

PATH = "/v1/organization/projects/{project_id}/api_keys"
OWN_PATH = "/v1/admin/projects/{project_id}/api_keys"


@readable(router, PATH)
async def list_project_api_keys(
    project_id: str,
    services: ServicesDep,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
) -> Response:
    """Lists keys, oldest first; their values are not told."""
    found = await tenancy_of(services).directory.keys(project_id)
    return json_response(page_of([key_body(one) for one in found], limit=limit, after=after))


@readable(router, PATH + "/{api_key_id}")
async def get_project_api_key(project_id: str, api_key_id: str, services: ServicesDep) -> Response:
    """Describes a key."""
    return json_response(key_body(await tenancy_of(services).directory.key(project_id, api_key_id)))


@router.post(PATH + "/{api_key_id}", openapi_extra=takes(KeyUpdate))
async def update_project_api_key(project_id: str, api_key_id: str, request: Request, services: ServicesDep) -> Response:
    """Changes name, scopes, expiry or limits of a key, or disables it; at once, on every worker."""
    return await _update(project_id, api_key_id, request, services)


@router.delete(PATH + "/{api_key_id}")
async def delete_project_api_key(project_id: str, api_key_id: str, request: Request, services: ServicesDep) -> Response:
    """Forgets a key; it opens nothing from now on."""
    await tenancy_of(services).directory.delete_key(who(request), project_id, api_key_id)
    return json_response({"id": api_key_id, "object": "organization.project.api_key.deleted", "deleted": True})


@router.post(OWN_PATH, openapi_extra=takes(KeyRequest))
async def create_api_key(project_id: str, request: Request, services: ServicesDep) -> Response:
    """Makes a key with scopes and limits of its own. Its value is in this answer and nowhere else."""
    directory = tenancy_of(services).directory
    body, given = await read_change(request, KeyRequest)
    key, made = await directory.create_key(
        who(request),
        project_id,
        body.name,
        scopes=body.scopes,
        ttl_s=body.expires_in_seconds,
        limits=changed_limits(KeyLimits(), body, given),
    )
    return json_response(new_key_body(key, made))


@router.post(OWN_PATH + "/{api_key_id}/rotate", openapi_extra=takes(RotateRequest))
async def rotate_api_key(project_id: str, api_key_id: str, request: Request, services: ServicesDep) -> Response:
    """Gives a key another secret; the old one works for `overlap_seconds` more."""
    directory = tenancy_of(services).directory
    body = await read_body(request, RotateRequest)
    key, made = await directory.rotate_key(who(request), project_id, api_key_id, body.overlap_seconds)
    return json_response(new_key_body(key, made))


async def _update(project_id: str, api_key_id: str, request: Request, services: Services) -> Response:
    directory = tenancy_of(services).directory
    body, given = await read_change(request, KeyUpdate)
    old = await directory.key(project_id, api_key_id)
    limits = changed_limits(old.limits, body, given)
    key = await directory.change_key(
        who(request),
        project_id,
        api_key_id,
        name=body.name,
        scopes=body.scopes,
        is_disabled=body.disabled,
        ttl_s=body.expires_in_seconds,
        limits=None if limits == old.limits else limits,
    )
    return json_response(key_body(key))


def key_body(key: ApiKey) -> dict[str, Any]:
    """A key as OpenAI has it, and what it may do."""
    return {
        "id": key.id,
        "object": "organization.project.api_key",
        "name": key.name,
        "redacted_value": key.shown,
        "created_at": key.created_at,
        "expires_at": key.expires_at or None,
        "last_used_at": key.last_used_at or None,
        "owner": {
            "type": "service_account",
            "service_account": account_body(key) if key.account else None,
            "user": None,
        },
        "owner_project_access": "inactive" if key.is_disabled else "active",
        "scopes": key.scopes.split(),
        "disabled": key.is_disabled,
        "overlap_until": key.overlap_until or None,
        "limits": key.limits.model_dump(),
    }


def new_key_body(key: ApiKey, made: NewKey) -> dict[str, Any]:
    """A key that has just been made, or has another secret."""
    return {**key_body(key), "value": made.value}
