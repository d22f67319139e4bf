"""Calls that wait for a person, and what the person said of them in a later request."""

from __future__ import annotations

from collections.abc import Sequence

from extensions.parsing.call_ids import new_call_id
from extensions.parsing.formats import ToolFormat
from extensions.tools.catalog import REPEATABLE
from gateway.errors import BadRequest, CallInProgress
from gateway.schemas.items import Item
from gateway.state.tools import ToolStore
from gateway.tools.calls import ServerCall
from gateway.tools.offers import Offer, Offers


def approved_calls(
    input_items: Sequence[Item], items: Sequence[Item], offers: Offers, tool_format: ToolFormat
) -> list[ServerCall]:
    """The calls to which a request says yes, and that have not been made yet.

    Args:
        input_items: Of this request.
        items: The whole conversation, this request's input included.
        offers: What this request lets be called.
        tool_format: How the model writes calls.

    Raises:
        BadRequest: An answer is to no question, to one that has been answered, or about a tool that is not offered.
    """
    asked = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
    made = {item["approval_request_id"] for item in items if item["type"] == "mcp_call"}
    calls: list[ServerCall] = []
    answered: set[str] = set()
    for number, item in enumerate(input_items):
        if item["type"] != "mcp_approval_response":
            continue
        param, approval_id = f"input[{number}].approval_request_id", item["approval_request_id"]
        request = asked.get(approval_id)
        if request is None:
            message = f"There is no approval request with id '{approval_id}' in this conversation."
            raise BadRequest(message, param, "approval_request_not_found")
        if approval_id in answered or _was_denied(approval_id, items, item):
            raise BadRequest(f"The approval request '{approval_id}' has been answered already.", param)
        answered.add(approval_id)
        if item["approve"] and approval_id not in made:
            offer = _offer(request, offers, param)
            call = ServerCall(call_id=new_call_id(tool_format), offer=offer, index=len(calls), approval_id=approval_id)
            call.arguments = request["arguments"]
            calls.append(call)
    return calls


async def check_not_begun(calls: Sequence[ServerCall], store: ToolStore | None, owner: str) -> None:
    """Refuses calls that were begun for an earlier request and of which nothing has been heard since.

    Raises:
        CallInProgress: One was; it must not be made twice.
        StoreUnavailable: Redis did not answer.
    """
    for call in calls:
        if store is None or call.approval_id is None or call.offer.spec.effect in REPEATABLE:
            continue
        if await store.is_begun(owner, call.approval_id):
            message = f"The call of '{call.offer.name}' was begun for another request, and has no result yet."
            raise CallInProgress(message, "input")


def _was_denied(approval_id: str, items: Sequence[Item], item: Item) -> bool:
    """Whether another answer to the same question said no; a repeated yes is the same yes."""
    answers = [one for one in items if one["type"] == "mcp_approval_response" and one is not item]
    return any(one["approval_request_id"] == approval_id and one["approve"] != item["approve"] for one in answers)


def _offer(request: Item, offers: Offers, param: str) -> Offer:
    found = offers.of(request["server_label"], request["name"])
    if not found:
        what = f"'{request['name'][:200]}' of '{request['server_label']}'"
        raise BadRequest(f"The approved call is of {what}, which is not among the 'tools' of this request.", param)
    return found[0]
