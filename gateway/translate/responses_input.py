"""Items of the Responses API to a chat request: the conversation that the model sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gateway.errors import BadRequest
from gateway.schemas.base import validate
from gateway.schemas.chat import ChatRequest
from gateway.schemas.items import Item
from gateway.schemas.messages import PART_SEPARATOR
from gateway.schemas.responses import AnyTool, FunctionTool, PromptFields, ResponseRequest, TextFormat
from gateway.tools.offers import Offers
from gateway.translate.client_names import client_names
from gateway.translate.mcp_items import McpHistory, chosen

SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "min_tokens",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "skip_special_tokens",
    "cache_salt",
    "priority",
    "stream",
)
"""What a chat request calls the same."""


def chat_request(body: PromptFields, items: Sequence[Item], offers: Offers | None = None) -> ChatRequest:
    """The chat request that asks for the same.

    Args:
        body: What the client sent.
        items: The whole conversation, earlier turns first.
        offers: Tools that this server runs for it.

    Raises:
        BadRequest: The conversation is empty or something in it cannot be; `param` is the client's name.
        UnsupportedParameter: A field asks for what this server cannot do.
    """
    messages = messages_of(items)
    if not messages:
        raise BadRequest("'input' holds nothing to answer.", "input")
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    fields: dict[str, Any] = {
        "messages": messages,
        "tools": [tool.for_chat() for tool in body.functions],
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": body.reasoning.effort,
        "verbosity": body.text.verbosity,
        "response_format": _response_format(body.text.format),
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    if isinstance(body, ResponseRequest):
        fields |= {name: getattr(body, name) for name in SAMPLING_FIELDS}
        # Keys of JSON objects are strings.
        fields["logit_bias"] = {str(key): value for key, value in body.logit_bias.items()}
        fields["max_completion_tokens"] = body.max_output_tokens
        fields["logprobs"] = body.num_logprobs is not None
        fields["top_logprobs"] = body.num_logprobs or 0
        if body.extension is not None and body.extension.sampler is not None:
            fields["extension"] = {"sampler": body.extension.sampler, "args": body.extension.args}
    if offers:
        fields["tool_choice"] = chosen(body.tool_choice, offers)
    with client_names(body):
        chat = validate(ChatRequest, fields)
    return chat.model_copy(update={"tools": [*chat.tools, *offers.tools()]}) if offers else chat


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Chat messages; what the model thought, said and called in one turn is one message."""
    messages: list[dict[str, Any]] = []
    history = McpHistory(items)
    for item in items:
        kind = item["type"]
        messages += history.messages(item)
        if kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": text_of(item["content"])})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item["output"])})
        elif kind in ("message", "function_call", "reasoning"):
            _add_to_turn(messages, item)
    return messages


def _add_to_turn(messages: list[dict[str, Any]], item: Item) -> None:
    turn = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    kind = item["type"]
    # A second text, or thought, begins a turn of its own; calls join the turn before them.
    if turn is None or (kind == "message" and "content" in turn) or (kind == "reasoning" and len(turn) > 1):
        turn = {"role": "assistant"}
        messages.append(turn)
    if kind == "message":
        turn["content"] = text_of(item["content"])
    elif kind == "reasoning":
        turn["reasoning_content"] = text_of(item["content"] or item["summary"])
    else:
        call = {"name": item["name"], "arguments": item["arguments"]}
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": call})


def text_of(content: str | Sequence[Item]) -> str:
    """The text of an item's parts, joined as chat joins them."""
    if isinstance(content, str):
        return content
    return PART_SEPARATOR.join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content)


def turn_starts(items: Sequence[Item]) -> list[int]:
    """Where turns of the user begin: a conversation may be cut before each of them and still make sense."""
    return [at for at, item in enumerate(items) if item["type"] == "message" and item["role"] == "user"]


def without_oldest(items: Sequence[Item], start: int) -> list[Item]:
    """The items from `start` on, and before them what system and developer said."""
    kept = [item for item in items[:start] if item["type"] == "message" and item["role"] in ("system", "developer")]
    return [*kept, *items[start:]]


def resolve_references(items: Sequence[Item], find: Callable[[str], Item | None]) -> list[Item]:
    """The items with references replaced by what they refer to.

    Raises:
        BadRequest: Something is not found.
    """
    resolved = []
    for number, item in enumerate(items):
        found: Item | None = item
        if item["type"] == "item_reference":
            found = find(item["id"])
        if found is None:
            raise BadRequest(f"Item with id '{item['id']}' not found.", f"input[{number}].id", "item_not_found")
        resolved.append(found)
    return resolved


def _response_format(wanted: TextFormat | None) -> dict[str, Any] | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {"type": "json_object"}
    fields = {"name": wanted.name, "description": wanted.description, "schema": wanted.schema_, "strict": wanted.strict}
    return {"type": "json_schema", "json_schema": {key: value for key, value in fields.items() if value is not None}}


def tools_shown(tools: Sequence[AnyTool]) -> list[dict[str, Any]]:
    """The tools as a response repeats them: nothing left out but secrets."""
    return [tool.model_dump() if isinstance(tool, FunctionTool) else tool.shown() for tool in tools]
