"""Answers whose tools the server runs, begun for chats and for responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import Request, Response

from extensions.tools.catalog import ToolCaller
from gateway.errors import BadRequest
from gateway.generations import Generations
from gateway.routes.answering import collect, json_response, stream
from gateway.routes.context import Prompt
from gateway.routes.owning import payer_of
from gateway.schemas.chat import ChatRequest
from gateway.schemas.responses import ResponseRequest
from gateway.services import Services
from gateway.tenancy.payer import Payer
from gateway.tools.approvals import approved_calls, check_not_begun
from gateway.tools.calls import ServerCall
from gateway.tools.making import TurnTools
from gateway.tools.offers import Offers, names_of
from gateway.tools.turn import ToolTurn
from gateway.translate.chat import ChatForm
from gateway.translate.chat_work import prepare_chat
from gateway.translate.client_names import own_name, renamed, renamed_work, response_name
from gateway.translate.head import Head
from gateway.translate.server_tools import ServerToolChunks, check_server_tools, server_tools_answer

MAX_KEY_CHARS = 255
"""Longest name that a client gives a request."""


async def chat_with_tools(request: Request, services: Services, body: ChatRequest, model: str) -> Response:
    """Answers a chat that names tools of the server, whole or as a stream."""
    check_server_tools(body)
    info = await services.engine_info()
    head = Head.new("chatcmpl", model=model, fingerprint=info.fingerprint)
    payer = payer_of(request, services, body.cache_salt)
    payer.require("tools")
    caller = ToolCaller(account=payer.account, salt=payer.salt, run_id=head.id, note=payer.note)
    offers = await services.tools.resolver.by_name(body.server_tools, names_of(body.tools), caller)
    chat = body.model_copy(update={"tools": [*body.tools, *offers.tools()]})
    work = await begin_turn(
        services,
        chat,
        offers,
        caller,
        payer=payer,
        model=model,
        max_calls=body.max_tool_calls,
        key=key_of(request),
        rename=lambda param: own_name(param, len(body.tools)),
    )
    form = work.form
    assert form is not None
    if body.stream:
        return stream(services, work, ServerToolChunks(head, form))
    choices = await collect(request, work)
    return json_response(server_tools_answer(head, form, choices, work), usage=work.usage)


async def begin_response_turn(
    services: Services,
    body: ResponseRequest,
    prompt: Prompt,
    response_id: str,
    *,
    model: str,
    payer: Payer,
    key: str,
) -> ToolTurn:
    """Begins a response that may call tools of servers, and makes the calls that the request approves.

    Raises:
        BadRequest: An approval is of nothing that could be called, or the request cannot be served.
        CallInProgress: An approved call has been begun before.
        EngineError: The engine does not take it.
    """
    caller = ToolCaller(account=payer.account, salt=payer.salt, run_id=response_id, note=payer.note)
    approved = approved_calls(prompt.input_items, prompt.items, prompt.offers, prompt.work.plan.tool_format)
    await check_not_begun(approved, services.tools.registry.store, payer.account)
    return await begin_turn(
        services,
        prompt.chat,
        prompt.offers,
        caller,
        payer=payer,
        model=model,
        max_calls=body.max_tool_calls,
        key=key,
        approved=approved,
        rename=lambda param: response_name(param, body),
    )


async def begin_turn(
    services: Services,
    chat: ChatRequest,
    offers: Offers,
    caller: ToolCaller,
    *,
    payer: Payer,
    model: str,
    max_calls: int | None,
    key: str = "",
    approved: Sequence[ServerCall] = (),
    rename: Callable[[str], str] = str,
) -> ToolTurn:
    """Begins an answer whose tools the server runs.

    Args:
        services: Of the app.
        chat: The request, its `tools` being all that the model is told of.
        offers: Those of them that the server runs.
        caller: For whom.
        payer: Who pays.
        model: Name of the model.
        max_calls: Most calls, if the request says; the server's own limit holds anyway.
        key: The client's own name for the request, see `key_of`.
        approved: Calls of an earlier answer to which a person has said yes.
        rename: Gives the client's name of a field that an error of any round names.

    Raises:
        BadRequest: The request cannot be served as it stands.
        EngineError: The engine does not take it.
    """
    text, settings = services.runtime.text, services.settings

    async def begin(chat: ChatRequest) -> tuple[Generations, ChatForm]:
        with renamed(rename):
            work = renamed_work(await prepare_chat(chat, text, await services.engine_info(), settings), rename)
            running = await Generations.start(
                services.runtime,
                [work.work],
                payer=payer,
                model=model,
                metrics=services.metrics,
            )
        return running, work.form(chat, text, settings)

    tools = TurnTools(
        offers=offers,
        door=services.tools.box,
        caller=caller,
        max_calls=min(max_calls or settings.max_tool_calls, settings.max_tool_calls),
        max_s=settings.max_tool_turn_s,
        store=services.tools.registry.store,
        approved=approved,
        payer=payer,
        key=key,
    )
    return await ToolTurn.start(begin, chat, tools)


def key_of(request: Request) -> str:
    """The name that a client gives its request, so that it can be sent again; empty if it gives none.

    Raises:
        BadRequest: It is none.
    """
    key = request.headers.get("idempotency-key", "").strip()
    if len(key) > MAX_KEY_CHARS:
        raise BadRequest(f"The header 'Idempotency-Key' has more than {MAX_KEY_CHARS} characters.", "Idempotency-Key")
    return key
