"""/v1/responses: create, read, follow, cancel, delete."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from engine.request import EngineInfo
from extensions.parsing.answers import AnswerPlan
from gateway.errors import BadRequest
from gateway.generations import Generations
from gateway.openapi import takes
from gateway.prefixes.using import UsedPrefix, check_prefix_fields, prefix_of
from gateway.programs.running import asked_program
from gateway.programs.work import ProgramWork
from gateway.routes.answering import json_response
from gateway.routes.context import Prompt, read_prompt
from gateway.routes.following import follow, read_response
from gateway.routes.listing import Limit, Order, page
from gateway.routes.owning import owner_of, payer_of
from gateway.routes.reading import readable
from gateway.routes.responding import Turn, answer_as_stream, answer_whole, begin_in_background, event_stream
from gateway.routes.running import model_name
from gateway.routes.with_tools import begin_response_turn, key_of
from gateway.runs.starting import start_program
from gateway.schemas.extensions import ExtensionFields
from gateway.schemas.items import new_id
from gateway.schemas.responses import InputTokensRequest, ResponseRequest
from gateway.services import Services, ServicesDep, read_body
from gateway.state.store import TooLargeToStore
from gateway.tenancy.payer import Payer
from gateway.tools.turn import ToolTurn
from gateway.translate.client_names import client_names
from gateway.translate.programs import chat_for_program
from gateway.translate.responses_events import ResponseWriter
from gateway.translate.responses_object import Body, is_over, new_response
from gateway.translate.responses_tools import ToolResponseWriter

router = APIRouter()

CANCEL_S = 5.0
"""Seconds that a cancellation waits for another worker to write it down."""

_POLL_S = 0.05


@router.post("/v1/responses", openapi_extra=takes(ResponseRequest, streams=True))
async def create_response(request: Request, services: ServicesDep) -> Response:
    """Answers an input, alone or after earlier turns."""
    body = await read_body(request, ResponseRequest)
    model = model_name(services, body.model)
    program = asked_program(body.model, body.extension)
    _check_streaming(body, services)
    check_prefix_fields(body)
    services.retainer.check(body, is_program=program is not None)
    owner = owner_of(request, services)
    if body.background or body.store:
        await services.store.check()
    payer = payer_of(request, services, body.cache_salt)
    if body.servers:
        payer.require("tools")
    _check_approvals(body)
    room, info = body.max_output_tokens or 1, await services.engine_info()
    async with prefix_of(body, services.prefixes, info, payer) as used:
        start = None if used is None else used.start
        prompt = await read_prompt(services, body, owner, num_output_tokens=room, start=start)
        turn = await _begin(services, body, prompt, program, used, model=model, payer=payer, key=key_of(request))
    if not body.background:
        return answer_as_stream(turn) if body.stream else json_response(await answer_whole(request, turn))
    queued = dict(turn.response, status="queued")
    try:
        await begin_in_background(turn)
    except TooLargeToStore:
        raise BadRequest("'input' is larger than what this server stores.", "input") from None
    if body.stream:
        return event_stream(services, follow(services, turn.response_id, owner, -1))
    return json_response(queued)


def _check_streaming(body: ResponseRequest, services: Services) -> None:
    if body.stream_options is not None and not body.stream and not services.settings.lenient_stream_options:
        raise BadRequest("'stream_options' is only allowed when 'stream' is true.", "stream_options")


def _check_approvals(body: ResponseRequest) -> None:
    """A person's yes or no is about a call that the servers of the request make."""
    for number, item in enumerate(body.input):
        if item["type"] == "mcp_approval_response" and not body.servers:
            message = f"'input[{number}]' answers for a call of a server; name the server in 'tools' again."
            raise BadRequest(message, "tools")


async def _begin(
    services: Services,
    body: ResponseRequest,
    prompt: Prompt,
    program: ExtensionFields | None,
    used: UsedPrefix | None,
    *,
    model: str,
    payer: Payer,
    key: str,
) -> Turn:
    """Hands the prompt to the engine, or to the program that answers it."""
    info = await services.engine_info()
    form = prompt.work.form(prompt.chat, services.runtime.text, services.settings)
    is_stored = body.store is not False and services.stored is not None
    response = new_response(new_id("resp"), body, model=model, is_stored=is_stored, defaults=_defaults(info))
    if used is not None:
        response["kv"] = used.kv
    work: Generations | ProgramWork | ToolTurn
    writer = ResponseWriter(response, form)
    if program is not None:
        if body.servers:
            raise BadRequest("A program calls servers by itself; leave them out of 'tools'.", "tools")
        given = replace(chat_for_program(prompt.chat, model), stream=body.stream)
        work = await start_program(services, body, program, given, payer)
        form = replace(form, plan=AnswerPlan(thinking=None, tool_format=form.plan.tool_format))
        writer = ResponseWriter(response, form)
    elif prompt.offers:
        work = await begin_response_turn(services, body, prompt, response["id"], model=model, payer=payer, key=key)
        writer = ToolResponseWriter(response, form, work, prompt.untold)
    else:
        part = prompt.work.work if used is None else used.work(prompt.work.work)
        with client_names(body):
            work = await Generations.start(
                services.runtime,
                [services.retainer.plan(body, info, payer, part, response)],
                payer=payer,
                model=model,
                metrics=services.metrics,
            )
    return Turn(
        services=services,
        owner=payer.account,
        prompt=prompt,
        work=work,
        writer=writer,
        is_stored=is_stored,
        conversation_id=None if body.conversation is None else body.conversation.id,
    )


def _defaults(info: EngineInfo) -> dict[str, float]:
    known = {"temperature": info.defaults.temperature, "top_p": info.defaults.top_p}
    return {name: 1.0 if value is None else value for name, value in known.items()}


@router.post("/v1/responses/input_tokens", openapi_extra=takes(InputTokensRequest))
async def count_input_tokens(request: Request, services: ServicesDep) -> Response:
    """Says how many tokens the input of a response would have."""
    body = await read_body(request, InputTokensRequest)
    services.models.resolve(body.model)
    prompt = await read_prompt(services, body, owner_of(request, services))
    return json_response({"object": "response.input_tokens", "input_tokens": len(prompt.work.prompt_ids)})


@readable(router, "/v1/responses/{response_id}")
async def get_response(
    request: Request,
    services: ServicesDep,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """Reads a stored response, or with `stream` its events: those it has, then those to come."""
    owner = owner_of(request, services)
    if starting_after is not None and not stream:
        raise BadRequest("'starting_after' is only allowed when 'stream' is true.", "starting_after")
    found = await read_response(services, response_id, owner)
    if stream:
        after = -1 if starting_after is None else starting_after
        return event_stream(services, follow(services, response_id, owner, after))
    return json_response(found["body"])


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, services: ServicesDep, response_id: str) -> Response:
    """Forgets a response; one that is still being made is ended."""
    found = await read_response(services, response_id, owner_of(request, services))
    if not is_over(found["body"]) and not await services.runs.cancel(response_id):
        await services.store.ask_cancel(response_id)
    await services.store.drop(response_id)
    return json_response({"id": response_id, "object": "response.deleted", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, services: ServicesDep, response_id: str) -> Response:
    """Ends a response that is made in the background; one that is over stays as it is."""
    owner = owner_of(request, services)
    body: Body = (await read_response(services, response_id, owner))["body"]
    if not body["background"]:
        raise BadRequest("Only a response that was created with 'background' can be cancelled.", "response_id")
    if not is_over(body):
        body = await _cancel(services, response_id, owner)
    return json_response(body)


async def _cancel(services: Services, response_id: str, owner: str) -> Body:
    if not await services.runs.cancel(response_id):
        await services.store.ask_cancel(response_id)
    deadline_s = time.monotonic() + CANCEL_S
    while True:
        body: Body = (await read_response(services, response_id, owner))["body"]
        if is_over(body) or time.monotonic() > deadline_s:
            return body
        await asyncio.sleep(_POLL_S)


@readable(router, "/v1/responses/{response_id}/input_items")
async def list_input_items(
    request: Request,
    services: ServicesDep,
    response_id: str,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
) -> Response:
    """Lists what the request of a response had as its input."""
    found: dict[str, Any] = await read_response(services, response_id, owner_of(request, services), "input")
    return json_response(page(found["input"], limit=limit, order=order, after=after))
