"""POST /tokenize and /detokenize, also under /v1, and /v1/chat/completions/render: prompts without answers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from engine.text.model import TextModel
from extensions.tools.catalog import ToolCaller
from gateway.errors import BadRequest, PromptTooLong
from gateway.openapi import takes
from gateway.routes.answering import json_response
from gateway.routes.owning import owner_of
from gateway.schemas.base import parse_json, validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from gateway.services import ServicesDep, read_body
from gateway.settings import Settings
from gateway.tools.offers import names_of
from gateway.translate.chat_work import prepare_chat, tool_format_of
from gateway.translate.prompts import check_ids, encode_messages, encode_text
from gateway.translate.sampling import check_limits

router = APIRouter()

MAX_CONTEXTS = 16
"""Text of more than this many contexts is not tokenised just to be counted, nor made from ids."""


@router.post("/tokenize", openapi_extra=takes(TokenizeTextRequest, TokenizeChatRequest))
@router.post("/v1/tokenize", openapi_extra=takes(TokenizeTextRequest, TokenizeChatRequest))
async def tokenize(request: Request, services: ServicesDep) -> Response:
    """Turns a text, or a conversation through the chat template, into token ids."""
    data = parse_json(await request.body())
    body: TokenizeTextRequest | TokenizeChatRequest
    if data.get("messages") is not None:
        body = validate(TokenizeChatRequest, data)
    else:
        body = validate(TokenizeTextRequest, data)
    services.models.resolve(body.model)
    info = await services.engine_info()
    ids = await _encode(services.runtime.text, services.settings, body, info.limit_tokens * MAX_CONTEXTS)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": info.limit_tokens, "tokens": ids}
    if body.return_token_strs:
        tokenizer = services.runtime.text.tokenizer
        answer["token_strs"] = [tokenizer.token_text(token_id) for token_id in ids]
    return json_response(answer)


async def _encode(
    text: TextModel, settings: Settings, body: TokenizeTextRequest | TokenizeChatRequest, limit_tokens: int
) -> list[int]:
    try:
        if isinstance(body, TokenizeChatRequest):
            return await encode_messages(text, body, limit_tokens, tool_format_of(text, settings))
        return await encode_text(text, body.prompt, limit_tokens, param="prompt", add_special=body.add_special_tokens)
    except PromptTooLong as error:
        reason = f"'{error.param}' has more than {limit_tokens} tokens, the most that are tokenised at once."
        raise BadRequest(reason, error.param, "string_above_max_length") from None


@router.post("/v1/chat/completions/render", openapi_extra=takes(ChatRequest))
async def render_chat_completion(request: Request, services: ServicesDep) -> Response:
    """Checks a chat request and shows what the model would be given, without asking it."""
    body = await read_body(request, ChatRequest)
    model = services.models.resolve(body.model)
    check_limits(body, services.settings)
    text = services.runtime.text
    if body.server_tools:
        caller = ToolCaller(account=owner_of(request, services))
        offers = await services.tools.resolver.by_name(body.server_tools, names_of(body.tools), caller)
        body = body.model_copy(update={"tools": [*body.tools, *offers.tools()]})
    chat = await prepare_chat(body, text, await services.engine_info(), services.settings)
    answer = {
        "object": "chat.completion.render",
        "model": model,
        "prompt": text.tokenizer.decode(chat.prompt_ids, skip_special=False),
        "token_ids": chat.prompt_ids,
        "sampling_params": chat.options.sampling,
    }
    return json_response(answer)


@router.post("/detokenize", openapi_extra=takes(DetokenizeRequest))
@router.post("/v1/detokenize", openapi_extra=takes(DetokenizeRequest))
async def detokenize(request: Request, services: ServicesDep) -> Response:
    """Turns token ids into text; special tokens are shown."""
    body = await read_body(request, DetokenizeRequest)
    services.models.resolve(body.model)
    info = await services.engine_info()
    limit_tokens = info.limit_tokens * MAX_CONTEXTS
    if len(body.tokens) > limit_tokens:
        raise BadRequest(f"'tokens' has more than {limit_tokens} ids.", "tokens", "array_above_max_length")
    check_ids(body.tokens, info.vocab_size, "tokens")
    return json_response({"prompt": services.runtime.text.tokenizer.decode(body.tokens, skip_special=False)})
