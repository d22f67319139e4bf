"""What a response answers: its input after the turns before it, as prompt tokens that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ContextTooLong
from engine.request import EngineInfo
from extensions.tools.catalog import ToolCaller
from gateway.errors import BadRequest, NotFound, PromptTooLong
from gateway.schemas.chat import ChatRequest
from gateway.schemas.items import Item
from gateway.schemas.responses import PromptFields
from gateway.services import Services
from gateway.state.store import ResponseStore
from gateway.tools.offers import Listing, Offers
from gateway.translate.behind import PrefixStart
from gateway.translate.chat_work import ChatWork, prepare_chat
from gateway.translate.client_names import client_names, renamed_work, response_name
from gateway.translate.responses_input import (
    chat_request,
    resolve_references,
    turn_starts,
    without_oldest,
)
from gateway.translate.sampling import check_limits


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation, ready for the engine.

    Attributes:
        input_items: Those of this request, references resolved.
        items: The whole conversation, earlier turns first, whatever `truncation` left out.
        chat: The chat request that asks for the same.
        work: What it comes down to.
        offers: Tools that this server runs for it.
    """

    input_items: list[Item]
    items: list[Item]
    chat: ChatRequest
    work: ChatWork
    offers: Offers

    @property
    def untold(self) -> list[Listing]:
        """Servers of whose tools the conversation has no list yet."""
        told = {item["server_label"] for item in self.items if item["type"] == "mcp_list_tools"}
        return [listing for listing in self.offers.listings if listing.label not in told]


async def read_prompt(
    services: Services,
    body: PromptFields,
    owner: str,
    *,
    num_output_tokens: int = 1,
    start: PrefixStart | None = None,
) -> Prompt:
    """Puts the conversation together.

    Args:
        services: Of the app.
        body: What the client sent.
        owner: Who asks.
        num_output_tokens: Room that `truncation` makes for the answer.
        start: What the conversation goes behind; it is not truncated then.

    Raises:
        BadRequest: Something in it cannot be; `param` names it.
        NotFound: There is no such conversation.
        StoreUnavailable: It needs a store, and there is none or it does not answer.
        PromptTooLong: It does not fit and may not be cut.
        ToolError: A server cannot be asked for its tools.
    """
    history = await _history(services, body, owner)
    input_items = await _resolve(services, body.input, history, owner)
    items = [*history, *input_items]
    info = await services.engine_info()
    taken = {tool.name for tool in body.functions}
    offers = await services.tools.resolver.by_server(body.servers, taken, ToolCaller(account=owner))
    if body.truncation == "disabled" or start is not None:
        chat, work = await _prepare(services, body, items, offers, info, start)
    else:
        chat, work = await _prepare_latest(services, body, items, offers, info, num_output_tokens)
    return Prompt(input_items, items, chat, work, offers)


async def _history(services: Services, body: PromptFields, owner: str) -> list[Item]:
    """The turns before this request."""
    if body.conversation is not None:
        conversation_id = body.conversation.id
        if await services.store.read(conversation_id, owner, "conversation") is None:
            raise NotFound(f"Conversation with id '{conversation_id}' not found.", "conversation")
        return await services.store.items(conversation_id)
    if body.previous_response_id is None:
        return []
    found = await services.store.read(body.previous_response_id, owner, "response", "context", "status")
    param = "previous_response_id"
    if found is None:
        message = f"Previous response with id '{body.previous_response_id}' not found."
        raise BadRequest(message, param, "previous_response_not_found")
    if found["status"] in ("queued", "in_progress"):
        raise BadRequest(f"Previous response '{body.previous_response_id}' has not ended yet.", param)
    context: list[Item] = found["context"]
    return context


async def _resolve(services: Services, items: list[Item], history: list[Item], owner: str) -> list[Item]:
    wanted = [item["id"] for item in items if item["type"] == "item_reference"]
    if not wanted:
        return items
    known = {item["id"]: item for item in history}
    if services.stored is not None and not known.keys() >= set(wanted):
        known |= await _stored_items(services.stored, wanted, owner)
    return resolve_references(items, known.get)


async def _stored_items(store: ResponseStore, item_ids: Sequence[str], owner: str) -> dict[str, Item]:
    """Items by id, out of whatever record of the owner holds them."""
    found: dict[str, Item] = {}
    for record_id in set((await store.holders(item_ids)).values()):
        response = await store.read(record_id, owner, "response", "context")
        if response is not None:
            found |= {item["id"]: item for item in response["context"] or []}
        elif await store.read(record_id, owner, "conversation") is not None:
            found |= {item["id"]: item for item in await store.items(record_id)}
    return found


async def _prepare(
    services: Services,
    body: PromptFields,
    items: Sequence[Item],
    offers: Offers,
    info: EngineInfo,
    start: PrefixStart | None = None,
) -> tuple[ChatRequest, ChatWork]:
    chat = chat_request(body, items, offers)
    with client_names(body):
        check_limits(chat, services.settings)
        work = await prepare_chat(chat, services.runtime.text, info, services.settings, start)
    return chat, renamed_work(work, lambda param: response_name(param, body))


async def _prepare_latest(
    services: Services,
    body: PromptFields,
    items: Sequence[Item],
    offers: Offers,
    info: EngineInfo,
    num_output_tokens: int,
) -> tuple[ChatRequest, ChatWork]:
    """Leaves out as few of the oldest turns as it takes; the last one stays."""
    cuts = [0, *turn_starts(items)[1:]]
    fitting: tuple[ChatRequest, ChatWork] | None = None
    # All of it is tried first; then the cut that just fits is searched by halves.
    low, middle, high = 0, 0, len(cuts) - 1
    while low <= high:
        try:
            chat, work = await _prepare(services, body, without_oldest(items, cuts[middle]), offers, info)
            if len(work.prompt_ids) + num_output_tokens > info.limit_tokens:
                raise ContextTooLong(info.limit_tokens, len(work.prompt_ids), num_output_tokens)
        except (PromptTooLong, ContextTooLong) as error:
            if middle == len(cuts) - 1:
                error.param = "input"
                raise
            low = middle + 1
        else:
            fitting, high = (chat, work), middle - 1
        middle = (low + high) // 2
    assert fitting is not None
    return fitting
