"""/v1/batches: many requests from a file, made when nobody is in a hurry."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from gateway.batches.job import INPUT
from gateway.errors import BadRequest, NotFound, NotReady
from gateway.openapi import takes
from gateway.routes.answering import json_response
from gateway.routes.files import not_found, page_of, read_file
from gateway.routes.owning import owner_of, payer_of
from gateway.routes.reading import readable
from gateway.schemas.batches import MAX_TTL_S, BatchRequest
from gateway.services import Services, ServicesDep, read_body
from gateway.state.batch_records import Batch, Fixed
from gateway.state.file_bytes import FileBytes, link_or_copy
from gateway.state.files import disk_errors
from gateway.tenancy.payer import Payer
from gateway.verbs import allowed_methods

router = APIRouter()

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""What requests of a batch may ask, as far as this server has it."""


@router.post("/v1/batches", openapi_extra=takes(BatchRequest))
async def create_batch(request: Request, services: ServicesDep) -> Response:
    """Begins a batch."""
    body = await read_body(request, BatchRequest)
    _check_endpoint(request, body.endpoint)
    payer = payer_of(request, services, None)
    # What a key may not ask for itself it may not have asked for later.
    payer.require("inference")
    found = await read_file(request, services, body.input_file_id, "input_file_id")
    if found["purpose"] != "batch":
        raise BadRequest(f"The purpose of the input file must be 'batch', not '{found['purpose']}'.", "input_file_id")
    batch_id = f"batch_{uuid.uuid4().hex}"
    await _store(services, batch_id, payer, body)
    services.runner.wake()
    return json_response((await _read(request, services, batch_id)).shown())


def _check_endpoint(request: Request, endpoint: str) -> None:
    served = [path for path in ENDPOINTS if "POST" in allowed_methods({**request.scope, "path": path})]
    if endpoint not in served:
        raise BadRequest(f"Invalid 'endpoint': it must be one of {', '.join(served)}.", "endpoint")


async def _store(services: Services, batch_id: str, payer: Payer, body: BatchRequest) -> None:
    files = await services.files.bytes()
    now, expiry = int(time.time()), body.output_expires_after
    fixed = Fixed(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + body.window_s,
        metadata=body.metadata,
        output_ttl_s=MAX_TTL_S if expiry is None else expiry.seconds,
        scopes=payer.scopes,
    )
    try:
        with disk_errors():
            await asyncio.to_thread(_prepare, files, batch_id, files.path(body.input_file_id))
    except FileNotFoundError:
        raise not_found(body.input_file_id, "input_file_id") from None
    # Where the answer is lost the batch may be there: what it needs stays, and is swept up later if it is not.
    if not await services.runner.tools.records.create(batch_id, payer.account, fixed):
        await asyncio.to_thread(files.remove_batch, batch_id)
        raise NotReady(f"This server has {services.settings.max_batches} batches that have not ended. Try again later.")


def _prepare(files: FileBytes, batch_id: str, source: Path) -> None:
    directory = files.batch_directory(batch_id)
    directory.mkdir(mode=0o700)
    try:
        link_or_copy(source, directory / INPUT)
    except BaseException:
        files.remove_batch(batch_id)
        raise


@readable(router, "/v1/batches")
async def list_batches(
    request: Request,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: str | None = None,
) -> Response:
    """Lists batches, the newest first."""
    owner = owner_of(request, services)
    found = await services.runner.tools.records.page(owner, after=after, limit=limit + 1)
    if found is None:
        raise BadRequest(f"'after' names no batch: '{(after or '')[:200]}'.", "after")
    return json_response(page_of([batch.shown() for batch in found], limit))


@readable(router, "/v1/batches/{batch_id}")
async def get_batch(request: Request, services: ServicesDep, batch_id: str) -> Response:
    """Tells how far a batch is."""
    return json_response((await _read(request, services, batch_id)).shown())


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, services: ServicesDep, batch_id: str) -> Response:
    """Ends a batch early; what is done is kept."""
    batch = await _read(request, services, batch_id)
    if not await services.runner.tools.records.ask_cancel(batch.id):
        batch = await _read(request, services, batch_id)
        raise BadRequest(f"Cannot cancel a batch with status '{batch.status}'.", "batch_id")
    services.runner.cancelled(batch.id)
    return json_response((await _read(request, services, batch_id)).shown())


async def _read(request: Request, services: Services, batch_id: str) -> Batch:
    found = await services.runner.tools.records.read(batch_id, owner_of(request, services))
    if found is None:
        raise NotFound(f"No batch found with id '{batch_id[:200]}'.", "batch_id")
    return found
