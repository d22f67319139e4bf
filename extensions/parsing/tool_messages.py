"""Tools and calls for chat templates that cannot show them: as text of the messages, in the model's own format."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from engine.text.chat_template import ChatTemplate
from extensions.parsing.formats import ToolFormat

Message = dict[str, Any]

_MISTRAL_ID = re.compile("[A-Za-z0-9]{9}")


def fit_template(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]], template: ChatTemplate, tool_format: ToolFormat
) -> list[Message]:
    """The messages as a template can show them.

    A template that knows no tools gets them as a block in the system message; one that knows no calls gets earlier
    calls as text of the assistant, and their results as messages of the user.
    """
    fitted = list(messages)
    if not template.uses("tool_calls"):
        fitted = _without_calls(fitted, tool_format)
    if tools and not template.uses("tools"):
        fitted = _with_instructions(fitted, tool_format.instructions(tools), template)
    if template.uses("length != 9"):
        fitted = [_with_short_ids(message) for message in fitted]
    return fitted


def _with_instructions(messages: list[Message], instructions: str, template: ChatTemplate) -> list[Message]:
    # Some templates refuse a system message; their own words say so.
    role = "user" if template.uses("System role not supported") else "system"
    if messages and messages[0]["role"] == role:
        first = messages[0]
        parts = (first["content"], instructions) if role == "system" else (instructions, first["content"])
        return [{**first, "content": "\n\n".join(filter(None, parts))}, *messages[1:]]
    return [{"role": role, "content": instructions}, *messages]


def _without_calls(messages: Sequence[Message], tool_format: ToolFormat) -> list[Message]:
    fitted: list[Message] = []
    for message in messages:
        if message["role"] in ("tool", "function"):
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if fitted and fitted[-1].get("holds_results"):
                fitted[-1]["content"] += "\n" + result
            else:
                fitted.append({"role": "user", "content": result, "holds_results": True})
        elif message.get("tool_calls"):
            calls = tool_format.write_calls([call["function"] for call in message["tool_calls"]])
            content = "\n".join(filter(None, (message["content"], calls)))
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            fitted.append({**kept, "content": content})
        else:
            fitted.append(message)
    return [{key: value for key, value in message.items() if key != "holds_results"} for message in fitted]


def _with_short_ids(message: Message) -> Message:
    """The message with the nine letters or digits that some templates demand of a call's id."""
    fitted = dict(message)
    if "tool_call_id" in message:
        fitted["tool_call_id"] = _short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        fitted["tool_calls"] = [
            {**call, "id": _short_id(call.get("id") or str(at))} for at, call in enumerate(message["tool_calls"])
        ]
    return fitted


def _short_id(call_id: str) -> str:
    if _MISTRAL_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
