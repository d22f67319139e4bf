"""/v1/organization/projects/{id}/service_accounts: what keys have in common, and how OpenAI's API makes them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.errors import NotFound
from gateway.openapi import takes
from gateway.routes.admin.common import changed_limits, page_of, read_change, tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.reading import readable
from gateway.schemas.admin import KeyRequest, ServiceAccountRequest
from gateway.services import ServicesDep, read_body
from gateway.tenancy.directory import ApiKey, Directory
from gateway.tenancy.keys import NewKey, new_id
from gateway.tenancy.limits import KeyLimits

router = APIRouter()

PATH = "/v1/organization/projects/{project_id}/service_accounts"


@router.post(PATH, openapi_extra=takes(ServiceAccountRequest))
async def create_service_account(project_id: str, request: Request, services: ServicesDep) -> Response:
    """Makes an account and its first key. The key's value is in this answer and nowhere else."""
    directory = tenancy_of(services).directory
    body = await read_body(request, ServiceAccountRequest)
    key, made = await directory.create_key(
        who(request), project_id, body.name, ttl_s=body.expires_in_seconds, account=new_id("svc_acct_")
    )
    return json_response({**account_body(key), "api_key": _new_key_body(key, made)})


@readable(router, PATH)
async def list_service_accounts(
    project_id: str,
    services: ServicesDep,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
) -> Response:
    """Lists accounts, oldest first."""
    found = await _accounts(tenancy_of(services).directory, project_id)
    return json_response(page_of([account_body(keys[0]) for keys in found.values()], limit=limit, after=after))


@readable(router, PATH + "/{service_account_id}")
async def get_service_account(project_id: str, service_account_id: str, services: ServicesDep) -> Response:
    """Describes an account."""
    keys = await _keys(tenancy_of(services).directory, project_id, service_account_id)
    return json_response(account_body(keys[0]))


@router.delete(PATH + "/{service_account_id}")
async def delete_service_account(
    project_id: str, service_account_id: str, request: Request, services: ServicesDep
) -> Response:
    """Forgets an account with all of its keys; they open nothing from now on."""
    directory = tenancy_of(services).directory
    for key in await _keys(directory, project_id, service_account_id):
        await directory.delete_key(who(request), project_id, key.id)
    return json_response(
        {"id": service_account_id, "object": "organization.project.service_account.deleted", "deleted": True}
    )


@router.post(PATH + "/{service_account_id}/api_keys", openapi_extra=takes(KeyRequest))
async def create_service_account_key(
    project_id: str, service_account_id: str, request: Request, services: ServicesDep
) -> Response:
    """Makes another key of an account."""
    directory = tenancy_of(services).directory
    body, given = await read_change(request, KeyRequest)
    await _keys(directory, project_id, service_account_id)
    key, made = await directory.create_key(
        who(request),
        project_id,
        body.name,
        scopes=body.scopes,
        ttl_s=body.expires_in_seconds,
        account=service_account_id,
        limits=changed_limits(KeyLimits(), body, given),
    )
    return json_response(_new_key_body(key, made))


async def _accounts(directory: Directory, project_id: str) -> dict[str, list[ApiKey]]:
    found: dict[str, list[ApiKey]] = {}
    for key in await directory.keys(project_id):
        if key.account:
            found.setdefault(key.account, []).append(key)
    return found


async def _keys(directory: Directory, project_id: str, account_id: str) -> list[ApiKey]:
    found = await _accounts(directory, project_id)
    if account_id not in found:
        raise NotFound(f"No service account has the id '{account_id[:100]}'.", "service_account_id")
    return found[account_id]


def account_body(key: ApiKey) -> dict[str, Any]:
    """A service account as OpenAI has it."""
    return {
        "id": key.account,
        "object": "organization.project.service_account",
        "name": key.name,
        "role": "member",
        "created_at": key.created_at,
    }


def _new_key_body(key: ApiKey, made: NewKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "object": "organization.project.service_account.api_key",
        "name": key.name,
        "value": made.value,
        "created_at": key.created_at,
        "expires_at": key.expires_at or None,
    }
