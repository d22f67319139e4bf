"""/v1/extensions: programs that are registered under names, in versions that never change."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from extensions.errors import ProgramInvalid
from gateway.errors import BadRequest, diagnostics_body
from gateway.openapi import takes
from gateway.programs.finding import Registered
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.owning import owner_of
from gateway.routes.reading import readable
from gateway.schemas.extensions import SourceRequest
from gateway.services import ServicesDep, read_body

router = APIRouter()


@router.post("/v1/extensions", openapi_extra=takes(SourceRequest))
async def register_extension(request: Request, services: ServicesDep) -> Response:
    """Registers a script under the name and version that its header says. The same script may come again."""
    body = await read_body(request, SourceRequest)
    registered, _ = await services.programs.finder.register(body.source, owner_of(request, services))
    return json_response(registered.body(source=False))


@router.post("/v1/extensions/check", openapi_extra=takes(SourceRequest))
async def check_extension(request: Request, services: ServicesDep) -> Response:
    """Says what is wrong with a script, without running it."""
    body = await read_body(request, SourceRequest)
    answer: dict[str, Any] = {"object": "extension.check", "valid": True, "diagnostics": [], "extension": None}
    try:
        program = await services.programs.finder.check(body.source)
        services.programs.check_needs(program, owner_of(request, services))
    except ProgramInvalid as error:
        return json_response(answer | {"valid": False, "diagnostics": diagnostics_body(error.diagnostics)})
    return json_response(answer | {"extension": Registered(program, 0, "user").body(source=False)})


@readable(router, "/v1/extensions")
async def list_extensions(
    request: Request,
    services: ServicesDep,
    name: Annotated[str | None, Query(max_length=64)] = None,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
) -> Response:
    """Lists programs, the newest version of each; with `name` every version of one, newest first."""
    owner, programs = owner_of(request, services), services.programs.finder
    if name is not None:
        versions = [one.body(source=False) for one in await programs.all_versions(name, owner)]
        ids = [version["id"] for version in versions]
        if after is not None and after not in ids:
            raise BadRequest(f"'after' names no version of this list: '{after}'.", "after")
        start = 0 if after is None else ids.index(after) + 1
        return json_response(_page(versions[start:], limit))
    behind = (after or "").partition("@")[0]
    names = [one for one in await programs.names(owner) if one > behind]
    found = [await programs.look_up(one, owner, "name") for one in names[: limit + 1]]
    return json_response(_page([one.body(source=False) for one in found], limit))


@readable(router, "/v1/extensions/{extension_id}")
async def get_extension(extension_id: str, request: Request, services: ServicesDep) -> Response:
    """Describes a program by `name` or `name@version`, its script included."""
    found = await services.programs.finder.look_up(extension_id, owner_of(request, services), "extension_id")
    return json_response(found.body(source=True))


@router.delete("/v1/extensions/{extension_id}")
async def delete_extension(extension_id: str, request: Request, services: ServicesDep) -> Response:
    """Forgets one version: the one named, or the newest that is meant. Runs of it go on."""
    removed = await services.programs.finder.remove(extension_id, owner_of(request, services))
    body = removed.body(source=False)
    return json_response({"id": body["id"], "object": "extension.deleted", "deleted": True})


def _page(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    data = found[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }
