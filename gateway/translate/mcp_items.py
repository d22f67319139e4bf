"""Items about servers that speak MCP: what the model is told of them, and which of their tools must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.errors import BadRequest
from gateway.schemas.items import Item
from gateway.tools.entries import OWN_LABEL
from gateway.tools.offers import Offers, function_name

Messages = list[dict[str, Any]]

_DENIED = "error: the user did not allow this call"
_PENDING = "error: the user has not been asked about this call yet, or has not answered; it was not made"


class McpHistory:
    """What came of the calls of a conversation.

    Args:
        items: The whole conversation.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self._asked = {item["id"]: item for item in items if item["type"] == "mcp_approval_request"}
        self._answered = {item["approval_request_id"] for item in items if item["type"] == "mcp_approval_response"}
        self._made = {item["approval_request_id"] for item in items if item["type"] == "mcp_call"}

    def messages(self, item: Item) -> Messages:
        """An item as chat messages; none for what the model learns otherwise."""
        match item["type"]:
            case "mcp_call":
                return _messages(item, _told(item))
            case "mcp_approval_request" if item["id"] not in self._answered | self._made:
                return _messages(item, _PENDING)
            case "mcp_approval_response" if not item["approve"] and item["approval_request_id"] in self._asked:
                reason = f": {item['reason']}" if item["reason"] else ""
                return _messages(self._asked[item["approval_request_id"]], _DENIED + reason)
        return []


def chosen(choice: str | dict[str, Any] | None, offers: Offers) -> str | dict[str, Any] | None:
    """A `tool_choice` that may name servers, by the names of functions.

    Raises:
        BadRequest: It names a server or a tool that the request does not have.
    """
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "mcp":
        functions = _functions(choice, offers, "tool_choice")
        if choice.get("name") is not None:
            return functions[0]
        return {"type": "allowed_tools", "mode": "required", "tools": functions}
    fields = choice.get("allowed_tools", choice)
    listed = fields.get("tools") if isinstance(fields, dict) else None
    if choice.get("type") != "allowed_tools" or not isinstance(listed, list):
        return choice
    tools: list[Any] = []
    for number, one in enumerate(listed):
        is_server = isinstance(one, dict) and one.get("type") == "mcp"
        tools += _functions(one, offers, f"tool_choice.tools[{number}]") if is_server else [one]
    return {"type": "allowed_tools", "mode": fields.get("mode"), "tools": tools}


def _functions(choice: dict[str, Any], offers: Offers, param: str) -> list[dict[str, Any]]:
    label, name = choice.get("server_label"), choice.get("name")
    found = offers.of(label, name) if isinstance(label, str) and (name is None or isinstance(name, str)) else []
    if not found:
        if isinstance(label, str) and isinstance(name, str) and offers.has_none(label, name):
            raise BadRequest(_no_tool(label, name), param, "tool_not_found")
        what = f"'{label}'" if name is None else f"'{name}' of '{label}'"
        raise BadRequest(f"'{param}' names {what[:200]}, which is not among the tools of this request.", param)
    return [{"type": "function", "name": offer.function} for offer in found]


def _no_tool(label: str, name: str) -> str:
    # `allowed_tools` may have it all the same: names that are not there are passed over.
    if label == OWN_LABEL:
        return f"There is no tool '{name[:200]}' on this server; register it first, at /v1/tools or by `wye tools add`."
    return f"The server '{label}' has no tool '{name[:200]}'."


def _messages(item: Item, told: str) -> Messages:
    function = {"name": function_name(item["name"]), "arguments": item["arguments"] or "{}"}
    call = {"id": item["id"], "type": "function", "function": function}
    return [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": item["id"], "content": told},
    ]


def _told(item: Item) -> str:
    error = item["error"]
    if error is None:
        return item["output"] or ""
    message = error.get("message") if isinstance(error, dict) else error
    return f"error: {item['output'] if item['output'] is not None else message}"
