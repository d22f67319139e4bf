"""How a prefix comes to be over HTTP: what is to be kept as tokens, computed once, and kept under its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.errors import ContextTooLong
from engine.request import EngineInfo
from extensions.live_context import LiveContext
from extensions.output import Usage
from extensions.programs.prefixes import ExportWish, transcript_from_bytes
from extensions.programs.transcript import Transcript
from gateway.errors import BadRequest, GatewayError
from gateway.prefixes.asking import Asker
from gateway.prefixes.by_program import make_by_program
from gateway.prefixes.service import Making
from gateway.programs.running import MODEL_PREFIX
from gateway.routes.following import read_response
from gateway.schemas.base import validate
from gateway.schemas.prefixes import PrefixRequest
from gateway.schemas.responses import PromptFields
from gateway.services import Services
from gateway.state.prefixes import PrefixRecord
from gateway.tenancy.payer import Payer
from gateway.translate.behind import PrefixStart, write_messages
from gateway.translate.chat_work import tool_format_of
from gateway.translate.prompts import chat_fields, check_ids, encode_text
from gateway.translate.responses_input import chat_request
from gateway.translate.responses_object import Body, is_over

RESPONSE = "response_id"


async def make_prefix(
    services: Services, body: PrefixRequest, asker: Asker, payer: Payer, prefix_id: str = ""
) -> PrefixRecord:
    """Computes what a request wants to be kept, and keeps it.

    Args:
        services: Of the app.
        body: The request.
        asker: Whose prefix it is.
        payer: Who pays.
        prefix_id: The id that it must get; a new one if it is empty.

    Raises:
        BadRequest: It cannot be kept; `param` names the field.
        PermissionDenied: A program makes it, and the key may run none.
        ProgramError: The program that makes it cannot run, or failed.
        NotFound: There is no such response or program, or the prefix that it went behind is not there any more.
        PrefixLost: The time of that prefix is over.
        StoreUnavailable: There is no Redis, or it did not answer.
        EngineStopped: No engine is there.
    """
    if body.program is not None:
        return await make_by_program(services, body, body.program, payer, prefix_id)
    if body.response_id is None:
        model, info = services.models.resolve(body.model), await services.engine_info()
        start = await _start(services, body, info)
        adapter = info.adapter_of(model)
        live = services.runtime.open_context(account=payer.account, salt=payer.salt, adapter=adapter)
        return await _keep(services, body, live, start, model, asker=asker, payer=payer, prefix_id=prefix_id)
    with _of_the_response():
        found = await read_response(services, body.response_id, payer.account, "context")
        response = found["body"]
        _check_answered(response)
        model, info = services.models.resolve(body.model or _model_of(response)), await services.engine_info()
        live, start = await _before(services, response, asker, info.adapter_of(model))
        try:
            start = await _conversation(services, found, start, info)
        except BaseException:
            live.release()
            raise
        return await _keep(services, body, live, start, model, asker=asker, payer=payer, prefix_id=prefix_id)


async def _keep(
    services: Services,
    body: PrefixRequest,
    live: LiveContext,
    start: PrefixStart,
    model: str,
    *,
    asker: Asker,
    payer: Payer,
    prefix_id: str,
) -> PrefixRecord:
    """Computes a history, of which a context has the beginning, and keeps it; the context is released."""
    payer.begin(model)
    try:
        live.append(start.token_ids[live.length :])
        await live.prefill()
        wish = ExportWish(
            name=body.name,
            ttl_s=body.ttl,
            visibility=body.visibility,
            allow=tuple(body.allow),
            transcript=start.transcript,
        )
        making = Making(model=model, ttl_mode=body.ttl_mode, metadata=body.metadata)
        return await services.prefixes.create(live, wish, making, asker, prefix_id)
    finally:
        live.release()
        payer.end(Usage(num_prompt_tokens=len(start.token_ids)))


async def _start(services: Services, body: PrefixRequest, info: EngineInfo) -> PrefixStart:
    """What is to be kept, as tokens."""
    text = services.runtime.text
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
        check_ids(ids, info.vocab_size, "tokens")
    if len(ids) > info.limit_tokens:
        param = "tokens" if body.input is None else "input"
        raise BadRequest(f"'{param}' has {len(ids)} tokens, at most {info.limit_tokens} are possible.", param)
    return PrefixStart(ids, Transcript().fixed(len(ids)))


def _check_answered(response: Body) -> None:
    if not is_over(response):
        raise BadRequest("The response has not ended yet.", RESPONSE)
    if response["status"] in ("failed", "cancelled"):
        raise BadRequest("The response has no answer that could be kept: it has failed or was cancelled.", RESPONSE)


def _model_of(response: Body) -> str | None:
    """The model that answered; the server's own for one that a program answered."""
    model: str = response["model"]
    return None if model.startswith(MODEL_PREFIX) else model


async def _before(services: Services, response: Body, asker: Asker, adapter: str) -> tuple[LiveContext, PrefixStart]:
    """A context with what a response went behind, which is nothing for most."""
    used = response.get("kv")
    if used is None:
        live = services.runtime.open_context(account=asker.owner, salt=asker.salt, adapter=adapter)
        return live, PrefixStart([], Transcript())
    opened = await services.prefixes.open(used["prefix_id"], asker, param=RESPONSE, adapter=adapter)
    live = opened.imported.live
    known = transcript_from_bytes(opened.record.transcript)
    return live, PrefixStart(list(live.token_ids), known.fixed(live.length))


async def _conversation(
    services: Services, found: Mapping[str, Any], start: PrefixStart, info: EngineInfo
) -> PrefixStart:
    """The conversation of a response, its answer included."""
    response, text = found["body"], services.runtime.text
    fields = {
        "instructions": response["instructions"],
        "tools": [tool for tool in response["tools"] if tool["type"] == "function"],
        "tool_choice": "none" if response["tool_choice"] == "none" else None,
        "reasoning": {"effort": response["reasoning"]["effort"]},
    }
    template, variables = chat_fields(chat_request(validate(PromptFields, fields), found["context"]))
    return await write_messages(
        text,
        info,
        start,
        [turn for message in template.messages for turn in message.turns()],
        [tool.for_template() for tool in template.tools],
        opens=False,
        tool_format=tool_format_of(text, services.settings),
        variables=variables,
    )


@contextmanager
def _of_the_response() -> Iterator[None]:
    """What is raised about the conversation of a response names the response.

    Raises:
        GatewayError: As raised inside, with another `param`.
    """
    try:
        yield
    except (GatewayError, ContextTooLong) as error:
        if error.param in ("messages", "input", "prompt_ids"):
            error.message = error.message.replace(f"'{error.param}'", f"'{RESPONSE}'")
            error.param = RESPONSE
        raise
