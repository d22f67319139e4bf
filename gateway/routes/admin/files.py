"""/v1/admin/export and /v1/admin/import: all tenants, limits and keys as one file."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.openapi import takes
from gateway.routes.admin.common import tenancy_of, who
from gateway.routes.answering import json_response
from gateway.routes.reading import readable
from gateway.schemas.admin import ConfigurationFile
from gateway.services import ServicesDep, read_body
from gateway.tenancy.transfer import export_configuration, import_configuration

router = APIRouter()


@readable(router, "/v1/admin/export")
async def export_tenants(services: ServicesDep) -> Response:
    """Tells everything that `import` takes: keep it as you keep keys, though no secret can be read from it."""
    return json_response(await export_configuration(tenancy_of(services).store))


@router.post("/v1/admin/import", openapi_extra=takes(ConfigurationFile))
async def import_tenants(request: Request, services: ServicesDep, dry_run: bool = False) -> Response:
    """Makes what is in a file and changes what is there already. With `dry_run` it only says what would change."""
    tenancy = tenancy_of(services)
    body = await read_body(request, ConfigurationFile)
    changes = await import_configuration(tenancy.store, who(request), body, dry_run=dry_run)
    return json_response(
        {
            "object": "import",
            "dry_run": dry_run,
            "created": changes.created,
            "updated": changes.updated,
            "unchanged": changes.unchanged,
        }
    )
