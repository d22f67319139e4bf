"""/v1/conversations: conversations that the server keeps, and their items."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from gateway.errors import BadRequest, NotFound
from gateway.openapi import takes
from gateway.routes.answering import json_response
from gateway.routes.listing import Limit, Order, page
from gateway.routes.owning import owner_of
from gateway.routes.reading import readable
from gateway.schemas.items import Item, new_id
from gateway.schemas.responses import ConversationItemsRequest, ConversationRequest, ConversationUpdate
from gateway.services import Services, ServicesDep, read_body
from gateway.state.store import TooLargeToStore

router = APIRouter()

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


@router.post("/v1/conversations", openapi_extra=takes(ConversationRequest))
async def create_conversation(request: Request, services: ServicesDep) -> Response:
    """Begins a conversation, with or without items."""
    body = await read_body(request, ConversationRequest)
    items = _own(body.items)
    fields = {
        "owner": owner_of(request, services),
        "kind": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata,
    }
    conversation_id = new_id("conv")
    await services.store.put(conversation_id, fields)
    try:
        await _add(services, conversation_id, items)
    except BadRequest:
        await services.store.drop(conversation_id)
        raise
    return json_response(_shown(conversation_id, fields))


@readable(router, "/v1/conversations/{conversation_id}")
async def get_conversation(request: Request, services: ServicesDep, conversation_id: str) -> Response:
    """Reads a conversation."""
    return json_response(_shown(conversation_id, await _read(request, services, conversation_id)))


@router.post("/v1/conversations/{conversation_id}", openapi_extra=takes(ConversationUpdate))
async def update_conversation(request: Request, services: ServicesDep, conversation_id: str) -> Response:
    """Gives a conversation other metadata."""
    body = await read_body(request, ConversationUpdate)
    fields = await _read(request, services, conversation_id)
    if not await services.store.put(conversation_id, {"metadata": body.metadata}, mode="update"):
        raise _not_found(conversation_id)
    return json_response(_shown(conversation_id, {**fields, "metadata": body.metadata}))


@router.delete("/v1/conversations/{conversation_id}")
async def delete_conversation(request: Request, services: ServicesDep, conversation_id: str) -> Response:
    """Forgets a conversation and its items."""
    await _read(request, services, conversation_id)
    await services.store.drop(conversation_id)
    return json_response({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/v1/conversations/{conversation_id}/items", openapi_extra=takes(ConversationItemsRequest))
async def create_items(request: Request, services: ServicesDep, conversation_id: str) -> Response:
    """Adds items to the end of a conversation."""
    body = await read_body(request, ConversationItemsRequest)
    items = _own(body.items)
    await _read(request, services, conversation_id)
    await _add(services, conversation_id, items)
    return json_response(page(items, limit=len(items), order="asc", after=None))


@readable(router, "/v1/conversations/{conversation_id}/items")
async def list_items(
    request: Request,
    services: ServicesDep,
    conversation_id: str,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
) -> Response:
    """Lists the items of a conversation."""
    await _read(request, services, conversation_id)
    items = await services.store.items(conversation_id)
    return json_response(page(items, limit=limit, order=order, after=after))


@readable(router, "/v1/conversations/{conversation_id}/items/{item_id}")
async def get_item(request: Request, services: ServicesDep, conversation_id: str, item_id: str) -> Response:
    """Reads one item."""
    await _read(request, services, conversation_id)
    items = await services.store.items(conversation_id)
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise _no_item(item_id)
    return json_response(found)


@router.delete("/v1/conversations/{conversation_id}/items/{item_id}")
async def delete_item(request: Request, services: ServicesDep, conversation_id: str, item_id: str) -> Response:
    """Removes one item and answers with the conversation."""
    fields = await _read(request, services, conversation_id)
    if not await services.store.drop_item(conversation_id, item_id):
        raise _no_item(item_id)
    return json_response(_shown(conversation_id, fields))


async def _read(request: Request, services: Services, conversation_id: str) -> dict[str, Any]:
    owner = owner_of(request, services)
    fields = await services.store.read(conversation_id, owner, "conversation", "created_at", "metadata")
    if fields is None:
        raise _not_found(conversation_id)
    return fields


async def _add(services: Services, conversation_id: str, items: Sequence[Item]) -> None:
    if not items:
        return
    try:
        if not await services.store.add_items(conversation_id, items):
            raise _not_found(conversation_id)
    except TooLargeToStore:
        raise BadRequest("The conversation would be larger than what this server stores.", "items") from None


def _own(items: Sequence[Item]) -> list[Item]:
    """The items under ids of our own: an id that a client made up may be somebody else's.

    Raises:
        BadRequest: One only refers to an item.
    """
    for number, item in enumerate(items):
        if item["type"] == "item_reference":
            raise BadRequest("A conversation takes items, not references to them.", f"items[{number}].type")
    return [{**item, "id": new_id(_PREFIXES[item["type"]])} for item in items]


def _shown(conversation_id: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": conversation_id,
        "object": "conversation",
        "created_at": fields["created_at"],
        "metadata": fields["metadata"],
    }


def _not_found(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation with id '{conversation_id[:200]}' not found.", "conversation_id")


def _no_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:200]}' not found.", "item_id")
