"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.errors import BadRequest
from gateway.generations import Generations
from gateway.openapi import takes
from gateway.prefixes.using import check_prefix_fields, prefix_of
from gateway.programs.running import asked_program
from gateway.routes.answering import collect, json_response, stream
from gateway.routes.owning import payer_of
from gateway.routes.running import answer_by_program, model_name
from gateway.routes.with_tools import chat_with_tools
from gateway.schemas.chat import ChatRequest
from gateway.services import ServicesDep, read_body
from gateway.translate.chat import ChatChunks, chat_answer
from gateway.translate.chat_work import prepare_chat
from gateway.translate.head import Head
from gateway.translate.programs import chat_for_program
from gateway.translate.sampling import check_limits

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest, streams=True))
async def create_chat_completion(request: Request, services: ServicesDep) -> Response:
    """Continues a conversation."""
    body = await read_body(request, ChatRequest)
    model = model_name(services, body.model)
    check_limits(body, services.settings)
    check_prefix_fields(body)
    program = asked_program(body.model, body.extension)
    services.retainer.check(body, is_program=program is not None)
    if program is not None:
        if body.server_tools:
            raise BadRequest("A program calls tools by itself; leave 'server_tools' out.", "server_tools")
        given = chat_for_program(body, model)
        return await answer_by_program(request, services, body, program, given, "chat")
    if body.server_tools:
        return await chat_with_tools(request, services, body, model)
    runtime, info = services.runtime, await services.engine_info()
    payer = payer_of(request, services, body.cache_salt)
    told: dict[str, Any] = {}
    async with prefix_of(body, services.prefixes, info, payer) as used:
        chat = await prepare_chat(body, runtime.text, info, services.settings, None if used is None else used.start)
        work = await Generations.start(
            runtime,
            [services.retainer.plan(body, info, payer, chat.work if used is None else used.work(chat.work), told)],
            payer=payer,
            model=model,
            metrics=services.metrics,
        )
    form = chat.form(body, runtime.text, services.settings)
    kv = None if used is None else used.kv
    head = Head.new("chatcmpl", model=model, fingerprint=info.fingerprint, kv=kv, told=told)
    if body.stream:
        return stream(services, work, ChatChunks(head, form))
    choices = await collect(request, work)
    return json_response(chat_answer(head, form, choices, work.usage), usage=work.usage)
