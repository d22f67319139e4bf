"""/v1/files: files that clients upload and that batches write."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse

from gateway.errors import BadRequest, NotFound
from gateway.openapi import UPLOAD
from gateway.routes.answering import json_response
from gateway.routes.listing import Order
from gateway.routes.owning import owner_of
from gateway.routes.reading import readable
from gateway.routes.uploads import Upload, read_upload
from gateway.schemas.base import validate
from gateway.schemas.batches import MAX_TTL_S, PURPOSES, ExpiresAfter
from gateway.services import Services, ServicesDep
from gateway.state.files import FileRecord, disk_errors, new_file_id

router = APIRouter()

MAX_PAGE = 10_000

_DIGITS = re.compile("[0-9]{1,9}")


class BytesResponse(FileResponse):
    """A file as it is; named so that the API's description tells its kind."""

    media_type = "application/octet-stream"


@router.post("/v1/files", openapi_extra=UPLOAD)
async def upload_file(request: Request, services: ServicesDep) -> Response:
    """Keeps a file."""
    files, owner = services.files, owner_of(request, services)
    await files.check_room(0)
    with disk_errors():
        draft = await asyncio.to_thread((await files.bytes()).draft)
    with draft:
        limit_bytes = services.settings.max_file_bytes
        content_type = request.headers.get("content-type", "")
        upload = await read_upload(content_type, request.stream(), draft, files, limit_bytes)
        record = _record(upload, owner, draft.size_bytes)
        await files.add(draft, record)
    return json_response(record.shown())


def _record(upload: Upload, owner: str, num_bytes: int) -> FileRecord:
    purpose = upload.fields.get("purpose")
    if purpose is None:
        raise BadRequest("Missing required parameter: 'purpose'.", "purpose")
    if purpose not in PURPOSES:
        raise BadRequest(f"Invalid 'purpose': it must be one of {', '.join(PURPOSES)}.", "purpose")
    ttl_s = _ttl_s(upload.fields)
    if ttl_s is None and purpose == "batch":
        ttl_s = MAX_TTL_S
    now = int(time.time())
    return FileRecord(
        id=new_file_id(),
        owner=owner,
        filename=upload.filename,
        purpose=purpose,
        num_bytes=num_bytes,
        created_at=now,
        expires_at=None if ttl_s is None else now + ttl_s,
    )


def _ttl_s(fields: dict[str, str]) -> int | None:
    """`expires_after`, which a form spells as `expires_after[seconds]`."""
    given: dict[str, Any] = {
        name: fields[f"expires_after[{name}]"] for name in ("anchor", "seconds") if f"expires_after[{name}]" in fields
    }
    if not given:
        return None
    if _DIGITS.fullmatch(given.get("seconds", "")):
        given["seconds"] = int(given["seconds"])
    try:
        return validate(ExpiresAfter, given).seconds
    except BadRequest as error:
        param = f"expires_after[{error.param}]"
        raise BadRequest(error.message.replace(f"'{error.param}'", f"'{param}'"), param, error.code) from None


@readable(router, "/v1/files")
async def list_files(
    request: Request,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    order: Order = "desc",
    after: str | None = None,
    purpose: str | None = None,
) -> Response:
    """Lists files."""
    owner = owner_of(request, services)
    found = await services.files.page(owner, after=after, order=order, limit=limit + 1, purpose=purpose)
    if found is None:
        raise BadRequest(f"'after' names no file: '{(after or '')[:200]}'.", "after")
    return json_response(page_of(found, limit))


def page_of(found: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    """One page of a list.

    Args:
        found: What there is, one more than the page may hold if there is more.
        limit: Most of the page.
    """
    data = found[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > limit,
    }


@readable(router, "/v1/files/{file_id}")
async def get_file(request: Request, services: ServicesDep, file_id: str) -> Response:
    """Tells what is known of a file."""
    return json_response(await read_file(request, services, file_id))


@readable(router, "/v1/files/{file_id}/content", BytesResponse)
async def get_content(request: Request, services: ServicesDep, file_id: str) -> Response:
    """Sends a file as it is."""
    found = await read_file(request, services, file_id)
    path = (await services.files.bytes()).path(found["id"])
    try:
        stat = await asyncio.to_thread(path.stat)
    except FileNotFoundError:
        raise not_found(file_id) from None
    headers = {
        # Never opened by a browser as what it says it is.
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found['filename'], safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    return BytesResponse(path, stat_result=stat, headers=headers)


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, services: ServicesDep, file_id: str) -> Response:
    """Removes a file. A batch that reads it goes on."""
    found = await read_file(request, services, file_id)
    await services.files.remove(found["id"])
    return json_response({"id": found["id"], "object": "file", "deleted": True})


async def read_file(
    request: Request, services: Services, file_id: str, param: Literal["file_id", "input_file_id"] = "file_id"
) -> dict[str, Any]:
    """The file object.

    Raises:
        NotFound: The caller has no such file.
        StoreUnavailable: There is no store, or it does not answer.
    """
    found = await services.files.read(file_id, owner_of(request, services))
    if found is None:
        raise not_found(file_id, param)
    return found


def not_found(file_id: str, param: str = "file_id") -> NotFound:
    """There is no such file, for this caller."""
    return NotFound(f"No such File object: {file_id[:200]}", param)
