"""/v1/runs: programs that run on their own, whoever is there to read."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from extensions.errors import ArgumentsInvalid
from extensions.journal.journal import Journal
from extensions.programs.request import ProgramRequest
from gateway.errors import BadRequest, NotFound
from gateway.openapi import takes
from gateway.programs.running import new_run_id
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit
from gateway.routes.owning import owner_of, payer_of
from gateway.routes.reading import readable
from gateway.routes.responding import event_stream
from gateway.routes.running import model_name
from gateway.runs.events import run_body
from gateway.runs.following import follow, not_found, read_run
from gateway.runs.starting import check_args, run_head
from gateway.schemas.runs import RunInputRequest, RunRequest
from gateway.services import Services, ServicesDep, read_body
from gateway.state.run_store import MAX_INPUT_BYTES, MAX_INPUTS, RunRecord
from gateway.translate.chunks import encode_json

router = APIRouter()

CANCEL_S = 5.0
"""Seconds that a cancellation waits for another worker to write it down."""

_POLL_S = 0.05


@router.post("/v1/runs", openapi_extra=takes(RunRequest, streams=True))
async def create_run(request: Request, services: ServicesDep) -> Response:
    """Starts a program that runs on its own, and answers at once, or with its events."""
    body = await read_body(request, RunRequest)
    check_args(body.args, "args")
    model = model_name(services, body.model)
    owner = owner_of(request, services)
    await services.detached_runs.store.check()
    await services.engine_info()
    given = ProgramRequest(
        messages=[message.for_template() for message in body.messages],
        prompt=body.prompt,
        model=model,
        tools=[tool.for_template() for tool in body.tools],
        params=body.params,
        stream=body.stream,
    )
    payer = payer_of(request, services, body.cache_salt)
    run_id = new_run_id()
    inbox, sink = services.detached_runs.inbox(run_id), services.detached_runs.sink(run_id)
    journal = None if sink is None else Journal(sink)
    try:
        work = await services.programs.begin(
            body.fields, owner, given, salt=payer.salt, payer=payer, run_id=run_id, inbox=inbox, journal=journal
        )
    except (NotFound, ArgumentsInvalid) as error:
        error.param = (error.param or "").removeprefix("extension.")
        raise
    await services.detached_runs.start(work, owner, run_head(work, model, body.metadata), journal=sink)
    if body.stream:
        return event_stream(services, follow(services, run_id, owner, -1))
    return json_response(run_body(await read_run(services, run_id, owner)))


@readable(router, "/v1/runs")
async def list_runs(
    request: Request,
    services: ServicesDep,
    after: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
) -> Response:
    """Lists runs, the newest first."""
    runs = services.detached_runs
    runs.watch()
    found = await runs.store.page(owner_of(request, services), after=after, limit=limit + 1)
    if found is None:
        raise BadRequest(f"'after' names no run: '{(after or '')[:200]}'.", "after")
    data = [run_body(record) for record in found[:limit]]
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(found) > limit,
        }
    )


@readable(router, "/v1/runs/{run_id}")
async def get_run(request: Request, services: ServicesDep, run_id: str) -> Response:
    """Tells how a run is, and what it came to."""
    return json_response(run_body(await read_run(services, run_id, owner_of(request, services))))


class _Events(Response):
    """What the API's description says of a stream."""

    media_type = "text/event-stream"


@readable(router, "/v1/runs/{run_id}/events", _Events)
async def get_run_events(
    request: Request,
    services: ServicesDep,
    run_id: str,
    after: Annotated[int | None, Query(ge=-1, le=2**63 - 1)] = None,
    last_event_id: Annotated[int | None, Header(ge=-1, le=2**63 - 1)] = None,
) -> Response:
    """Streams the events of a run with numbers above `after`, or `Last-Event-ID`: those it has, then those to come."""
    owner = owner_of(request, services)
    await read_run(services, run_id, owner)
    start = next((one for one in (after, last_event_id) if one is not None), -1)
    return event_stream(services, follow(services, run_id, owner, start))


@router.post("/v1/runs/{run_id}/input", openapi_extra=takes(RunInputRequest))
async def add_run_input(request: Request, services: ServicesDep, run_id: str) -> Response:
    """Says something to a program that runs: what its next `lm.receive` returns."""
    body = await read_body(request, RunInputRequest)
    owner = owner_of(request, services)
    number = await services.detached_runs.store.add_input(run_id, owner, encode_json(body.input))
    if number == 0:
        raise not_found(run_id)
    if number == -1:
        raise BadRequest("The run has ended; it takes no input.", "run_id", "run_ended")
    if number < 0:
        message = f"The run has had {MAX_INPUTS} inputs or {MAX_INPUT_BYTES} bytes of them, which is the most."
        raise BadRequest(message, "input", "inputs_full")
    return json_response({"object": "run.input", "run_id": run_id, "number": number})


@router.post("/v1/runs/{run_id}/cancel")
async def cancel_run(request: Request, services: ServicesDep, run_id: str) -> Response:
    """Ends a run; one that is over stays as it is."""
    record = await read_run(services, run_id, owner_of(request, services))
    if not record.is_over:
        record = await _cancelled(services, record)
    return json_response(run_body(record))


async def _cancelled(services: Services, record: RunRecord) -> RunRecord:
    if not await services.detached_runs.cancel(record.id):
        await services.detached_runs.store.ask_cancel(record.id)
    deadline_s = time.monotonic() + CANCEL_S
    while True:
        record = await read_run(services, record.id, record.owner)
        if record.is_over or time.monotonic() > deadline_s:
            return record
        await asyncio.sleep(_POLL_S)


@router.delete("/v1/runs/{run_id}")
async def delete_run(request: Request, services: ServicesDep, run_id: str) -> Response:
    """Forgets a run with its events; one that goes on is ended."""
    record = await read_run(services, run_id, owner_of(request, services))
    await services.detached_runs.store.drop(record.id)
    await services.detached_runs.cancel(record.id)
    return json_response({"id": record.id, "object": "run.deleted", "deleted": True})
