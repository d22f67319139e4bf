"""/v1/organization/projects: tenants, under OpenAI's name for them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from gateway.openapi import takes
from gateway.routes.admin.common import page_of, tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.reading import readable
from gateway.schemas.admin import ProjectRequest
from gateway.services import ServicesDep, read_body
from gateway.tenancy.directory import Tenant

router = APIRouter()

PATH = "/v1/organization/projects"


@router.post(PATH, openapi_extra=takes(ProjectRequest))
async def create_project(request: Request, services: ServicesDep) -> Response:
    """Makes a tenant, without limits."""
    directory = tenancy_of(services).directory
    body = await read_body(request, ProjectRequest)
    return json_response(project_body(await directory.create_tenant(who(request), body.name)))


@readable(router, PATH)
async def list_projects(
    services: ServicesDep,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
    include_archived: bool = False,
) -> Response:
    """Lists tenants, oldest first."""
    found = await tenancy_of(services).directory.tenants(archived=include_archived)
    return json_response(page_of([project_body(one) for one in found], limit=limit, after=after))


@readable(router, PATH + "/{project_id}")
async def get_project(project_id: str, services: ServicesDep) -> Response:
    """Describes a tenant."""
    return json_response(project_body(await tenancy_of(services).directory.tenant(project_id)))


@router.post(PATH + "/{project_id}", openapi_extra=takes(ProjectRequest))
async def update_project(project_id: str, request: Request, services: ServicesDep) -> Response:
    """Gives a tenant another name."""
    directory = tenancy_of(services).directory
    body = await read_body(request, ProjectRequest)
    return json_response(project_body(await directory.change_tenant(who(request), project_id, name=body.name)))


@router.post(PATH + "/{project_id}/archive")
async def archive_project(project_id: str, request: Request, services: ServicesDep) -> Response:
    """Ends a tenant: its keys open nothing more. What it used stays known."""
    directory = tenancy_of(services).directory
    return json_response(project_body(await directory.change_tenant(who(request), project_id, state="archived")))


def project_body(tenant: Tenant) -> dict[str, Any]:
    """A tenant as OpenAI has it, and its state."""
    return {
        "id": tenant.id,
        "object": "organization.project",
        "name": tenant.name,
        "created_at": tenant.created_at,
        "archived_at": tenant.archived_at or None,
        "status": "archived" if tenant.state == "archived" else "active",
        "state": tenant.state,
    }
