"""/v1/prefixes: histories that are kept under names, with their KV, for requests and programs to go on from."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from extensions.exports import is_warm
from extensions.output import Usage
from extensions.programs.prefixes import ExportWish
from extensions.programs.transcript import Transcript
from gateway.errors import BadRequest
from gateway.openapi import takes
from gateway.prefixes.asking import Asker, key_id_of
from gateway.prefixes.service import Making
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.owning import payer_of
from gateway.routes.reading import readable
from gateway.schemas.prefixes import PrefixRequest, PrefixUpdate
from gateway.services import Services, ServicesDep, read_body
from gateway.sse import unless_disconnected
from gateway.state.prefixes import PrefixRecord
from gateway.tenancy.payer import Payer
from gateway.translate.behind import PrefixStart, write_messages
from gateway.translate.chat_work import tool_format_of
from gateway.translate.prompts import encode_text

router = APIRouter()

IfMatch = Annotated[str | None, Header(max_length=200)]


@router.post("/v1/prefixes", openapi_extra=takes(PrefixRequest))
async def create_prefix(request: Request, services: ServicesDep) -> Response:
    """Computes a history and keeps it under a name; a name that is taken is given to the new version."""
    body = await read_body(request, PrefixRequest)
    model = services.models.resolve(body.model)
    services.prefixes.checked_ttl(body.ttl)
    await services.prefixes.check()
    payer = payer_of(request, services, None)
    start = await _start(services, body)
    record = await unless_disconnected(request.receive, _create(services, body, start, model, payer))
    return json_response(await _body(services, record))


async def _start(services: Services, body: PrefixRequest) -> PrefixStart:
    """What is to be kept, as tokens."""
    text, info = services.runtime.text, await services.engine_info()
    if body.messages is not None:
        empty = PrefixStart([], Transcript())
        messages = [turn for message in body.messages for turn in message.turns()]
        tools = [tool.for_template() for tool in body.tools]
        tool_format = tool_format_of(text, services.settings)
        return await write_messages(text, info, empty, messages, tools, opens=False, tool_format=tool_format)
    if body.input is not None:
        ids = await encode_text(text, body.input, info.limit_tokens, param="input", add_special=True)
    else:
        ids = body.tokens or []
        if max(ids) >= info.vocab_size:
            raise BadRequest(f"'tokens' holds ids outside the vocabulary of {info.vocab_size}.", "tokens")
    if len(ids) > info.limit_tokens:
        param = "tokens" if body.input is None else "input"
        raise BadRequest(f"'{param}' has {len(ids)} tokens, at most {info.limit_tokens} are possible.", param)
    return PrefixStart(ids, Transcript().fixed(len(ids)))


async def _create(
    services: Services, body: PrefixRequest, start: PrefixStart, model: str, payer: Payer
) -> PrefixRecord:
    adapter = services.runtime.info.adapter_of(model)
    asker = _asker(payer)
    live = services.runtime.open_context(start.token_ids, account=payer.account, salt=payer.salt, adapter=adapter)
    payer.begin(model)
    try:
        await live.prefill()
        wish = ExportWish(
            name=body.name,
            ttl_s=body.ttl,
            visibility=body.visibility,
            allow=tuple(body.allow),
            transcript=start.transcript,
        )
        making = Making(model=model, ttl_mode=body.ttl_mode, metadata=body.metadata)
        return await services.prefixes.create(live, wish, making, asker)
    finally:
        live.release()
        payer.end(Usage(num_prompt_tokens=len(start.token_ids)))


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
