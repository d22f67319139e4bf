"""/v1/prefixes: histories that are kept under names, with their KV, for requests and programs to go on from."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from extensions.exports import is_warm
from extensions.output import Usage
from gateway.errors import BadRequest
from gateway.openapi import takes
from gateway.prefixes.asking import Asker, key_id_of
from gateway.prefixes.repeating import made_once
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.owning import payer_of
from gateway.routes.prefix_making import make_prefix
from gateway.routes.reading import readable
from gateway.routes.with_tools import key_of
from gateway.schemas.prefixes import PrefixRequest, PrefixUpdate
from gateway.services import Services, ServicesDep, read_body
from gateway.sse import unless_disconnected
from gateway.state.prefixes import PrefixRecord
from gateway.tenancy.payer import Payer

router = APIRouter()

IfMatch = Annotated[str | None, Header(max_length=200)]


@router.post("/v1/prefixes", openapi_extra=takes(PrefixRequest))
async def create_prefix(request: Request, services: ServicesDep) -> Response:
    """Computes a history and keeps it under a name; a name that is taken is given to the new version."""
    body = await read_body(request, PrefixRequest)
    services.models.resolve(body.model)
    services.prefixes.checked_ttl(body.ttl)
    await services.prefixes.check()
    payer, key = payer_of(request, services, None), key_of(request)
    asker = _asker(payer)

    async def make(prefix_id: str = "") -> PrefixRecord:
        return await make_prefix(services, body, asker, payer, prefix_id)

    making = made_once(services.prefixes.store, asker, key, body, make) if key else make()
    return json_response(await _body(services, await unless_disconnected(request.receive, making)))


@readable(router, "/v1/prefixes")
async def list_prefixes(
    request: Request,
    services: ServicesDep,
    name: Annotated[str | None, Query(max_length=200)] = None,
    model: Annotated[str | None, Query(max_length=400)] = None,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
) -> Response:
    """Lists prefixes, the newest first: all versions of one name, or of all."""
    found = await services.prefixes.all(_asker(payer_of(request, services, None)))
    wanted = [one for one in found if name in (None, one.name) and model in (None, one.model)]
    if after is not None:
        places = [place for place, one in enumerate(wanted) if one.id == after]
        if not places:
            raise BadRequest(f"'after' names no prefix of this list: '{after[:200]}'.", "after")
        wanted = wanted[places[0] + 1 :]
    data = [await _body(services, record) for record in wanted[:limit]]
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(wanted) > limit,
        }
    )


@router.post("/v1/prefixes/{prefix_id:path}/warm")
async def warm_prefix(prefix_id: str, request: Request, services: ServicesDep) -> Response:
    """Computes the KV of a prefix where it is not in memory, and keeps it there, charged to its owner."""
    payer = payer_of(request, services, None)
    record = await services.prefixes.look_up_own(prefix_id, _asker(payer))
    payer.begin(record.model)
    computed = 0
    try:
        computed = await unless_disconnected(request.receive, services.prefixes.warm(record))
    finally:
        payer.end(Usage(num_prompt_tokens=computed))
    return json_response(await _body(services, await services.prefixes.look_up_own(record.id, _asker(payer))))


@router.post("/v1/prefixes/{prefix_id:path}/evict")
async def evict_prefix(prefix_id: str, request: Request, services: ServicesDep) -> Response:
    """Lets go of the KV of a prefix, which costs nothing from then on; it is computed again when it is used."""
    record = await services.prefixes.look_up_own(prefix_id, _asker(payer_of(request, services, None)))
    services.prefixes.evict(record)
    return json_response(await _body(services, record))


@readable(router, "/v1/prefixes/{prefix_id:path}")
async def get_prefix(
    prefix_id: str,
    request: Request,
    services: ServicesDep,
    at: Annotated[int | None, Query(ge=1, le=2**53)] = None,
) -> Response:
    """Describes a prefix, by id or by a name of one's own: its newest version, or the one that `at` says."""
    asker = _asker(payer_of(request, services, None))
    record = await services.prefixes.look_up(prefix_id, asker, version=at)
    response = json_response(await _body(services, record))
    response.headers["etag"] = f'"{record.etag}"'
    return response


@router.patch("/v1/prefixes/{prefix_id:path}", openapi_extra=takes(PrefixUpdate))
@router.post("/v1/prefixes/{prefix_id:path}", openapi_extra=takes(PrefixUpdate))
async def update_prefix(prefix_id: str, request: Request, services: ServicesDep, if_match: IfMatch = None) -> Response:
    """Changes until when a prefix is kept, who may use it, and its metadata; its history never changes."""
    body = await read_body(request, PrefixUpdate)
    record = await services.prefixes.look_up_own(prefix_id, _asker(payer_of(request, services, None)))
    fields = body.model_dump(exclude_none=True, exclude={"ttl"})
    etag = "" if if_match in (None, "*") else str(if_match).removeprefix("W/").strip('"') or "?"
    record = await services.prefixes.update(record, fields, ttl_s=body.ttl, etag=etag)
    response = json_response(await _body(services, record))
    response.headers["etag"] = f'"{record.etag}"'
    return response


@router.delete("/v1/prefixes/{prefix_id:path}")
async def delete_prefix(prefix_id: str, request: Request, services: ServicesDep) -> Response:
    """Forgets a prefix: its name is free at once, and what goes on from it pays for itself."""
    record = await services.prefixes.look_up_own(prefix_id, _asker(payer_of(request, services, None)))
    info = await services.prefixes.residency(record)
    await services.prefixes.delete(record)
    charged = {"charged_kib_seconds": info.kv_kib_ms / 1000}
    return json_response({"id": record.id, "object": "prefix.deleted", "deleted": True, **charged})


def _asker(payer: Payer) -> Asker:
    return Asker(owner=payer.account, salt=payer.salt, key_id=key_id_of(payer))


async def _body(services: Services, record: PrefixRecord) -> dict[str, Any]:
    """A prefix as clients see it: never its tokens."""
    info = await services.prefixes.residency(record)
    page_bytes = services.runtime.info.page_bytes if services.runtime.is_ready else 0
    return {
        "id": record.id,
        "object": "prefix",
        "name": record.name,
        "version": record.version,
        "model": record.model,
        "fingerprint": record.fingerprint,
        "tokens": record.num_tokens,
        "token_sha256": record.token_sha256,
        "bytes": info.num_pages * page_bytes,
        "status": "warm" if is_warm(info.num_computed, record.num_tokens) else "cold",
        "recomputable": True,
        "created_at": record.created_ms // 1000,
        "last_used_at": record.last_used_ms // 1000,
        "expires_at": record.expires_ms // 1000,
        "ttl": record.ttl_ms / 1000,
        "ttl_mode": record.ttl_mode,
        "owner": record.owner,
        "program": record.program or None,
        "visibility": record.visibility,
        "allow": list(record.allow),
        "metadata": record.metadata,
        "usage": {
            "imports": record.imports,
            "hit_tokens": record.hit_tokens,
            "charged_kib_seconds": info.kv_kib_ms / 1000,
        },
        "etag": record.etag,
    }
