"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gateway.generations import Generations, Work
from gateway.openapi import takes
from gateway.routes.answering import collect, json_response, stream
from gateway.schemas.chat import ChatRequest
from gateway.services import ServicesDep, read_body
from gateway.translate.chat import ChatChunks, chat_answer
from gateway.translate.head import Head
from gateway.translate.prompts import chat_fields, encode_messages, truncate_prompt
from gateway.translate.sampling import check_limits, to_options

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=takes(ChatRequest, streams=True))
async def create_chat_completion(request: Request, services: ServicesDep) -> Response:
    """Continues a conversation."""
    body = await read_body(request, ChatRequest)
    model = services.models.resolve(body.model)
    check_limits(body, services.settings)
    runtime, info = services.runtime, await services.engine_info()
    fields, variables = chat_fields(body)
    prompt_ids = await encode_messages(runtime.text, fields, info.limit_tokens, variables)
    prompt_ids = truncate_prompt(prompt_ids, body.truncate_prompt_tokens, info.limit_tokens, body.asked_tokens)
    options = to_options(
        body,
        info,
        runtime.text.tokenizer,
        num_prompt_tokens=len(prompt_ids),
        prompt_param="messages",
        max_tokens=body.asked_tokens,
        num_logprobs=body.num_logprobs,
    )
    work = await Generations.start(
        runtime,
        [Work(prompt_ids, options)],
        salt=body.cache_salt or "",
        metrics=services.metrics,
        prompt_param="messages",
    )
    head = Head.new("chatcmpl", model=model, fingerprint=info.fingerprint)
    if body.stream:
        return stream(services, work, ChatChunks(head, body, prompt_ids))
    choices = await collect(request, work)
    return json_response(chat_answer(head, body, choices, work.usage, prompt_ids))
