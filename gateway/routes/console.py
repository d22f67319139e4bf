"""GET /console and its files, and the numbers that the page shows."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.console.files import PATH, PageFile, page_files
from gateway.console.memory import kv_map
from gateway.console.overview import overview
from gateway.errors import NotFound, PermissionDenied
from gateway.routes.answering import json_response
from gateway.routes.owning import owner_of
from gateway.routes.reading import readable
from gateway.services import ServicesDep
from gateway.tenancy.principal import principal_of

router = APIRouter()

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


@router.head(PATH, include_in_schema=False)
@router.get(PATH, include_in_schema=False)
async def console(request: Request) -> Response:
    """The page."""
    return _answer(request, page_files()[PATH])


@router.head(PATH + "/{name}", include_in_schema=False)
@router.get(PATH + "/{name}", include_in_schema=False)
async def console_file(name: str, request: Request) -> Response:
    """One of its files."""
    file = page_files().get(f"{PATH}/{name}")
    if file is None:
        raise NotFound(f"The console has no file '{name[:80]}'.")
    return _answer(request, file)


@readable(router, "/v1/admin/overview")
async def show_overview(request: Request, services: ServicesDep) -> Response:
    """What the server does now: its engine, KV by payer, running programs."""
    principal = principal_of(request.scope)
    sees_all = principal.is_admin if principal is not None else not services.settings.api_keys
    return json_response(await overview(services, None if sees_all else owner_of(request, services)))


@readable(router, "/v1/admin/kv")
async def show_kv_map(request: Request, services: ServicesDep) -> Response:
    """Who holds the pages of the KV pool now, in their order, and on what terms."""
    principal = principal_of(request.scope)
    if principal is None and len(services.settings.api_keys) > 1:
        message = "This shows what everybody holds, and this server has no administrator: set WYE_ADMIN_KEY."
        raise PermissionDenied(message, code="admin_key_required")
    return json_response(await kv_map(services))


def _answer(request: Request, file: PageFile) -> Response:
    headers = {
        "etag": file.etag,
        "cache-control": "no-cache",
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
