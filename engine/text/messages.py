"""What a chat template is given: plain values, in the shape `transformers` gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.text.errors import TemplateError

_REASONING = ("reasoning_content", "thinking", "reasoning")
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def plain(value: Any) -> Any:
    """Copies JSON-like values into plain dicts, lists and scalars, so that a template meets no other methods.

    Raises:
        TemplateError: It holds anything else.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    raise TemplateError(f"a chat template takes JSON values only, not {type(value).__name__}")


def prepare_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a copy without keys that are None; reasoning is given under each name that templates read."""
    prepared = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise TemplateError(f"a message must be an object, not {type(message).__name__}")
        copied = {key: plain(value) for key, value in message.items() if value is not None}
        reasoning = next((copied[name] for name in _REASONING if name in copied), None)
        if reasoning is not None:
            copied = {"thinking": reasoning, **copied, "reasoning_content": reasoning}
        prepared.append(copied)
    return prepared


def continue_final(messages: list[dict[str, Any]], render: Callable[[], str]) -> str:
    """Renders so that the text ends inside the last message: marks its end, then cuts at the mark.

    Args:
        messages: Prepared messages that `render` reads; the last one is changed.
        render: Renders them.

    Raises:
        TemplateError: The last message has no text, or the template does not show it.
    """
    content = _mark_end(messages[-1])
    text = render()
    at = text.rfind(_TAG.rstrip())
    if at < 0 or content.strip() not in text:
        raise TemplateError("the chat template does not show the final message as it is, so it cannot be continued")
    if text[at : at + len(_TAG)] == _TAG:
        return text[:at]
    return text[:at].rstrip()


def _mark_end(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + _TAG
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text: str = part["text"]
            part["text"] = text + _TAG
            return text
    raise TemplateError("the final message has no text to continue")
