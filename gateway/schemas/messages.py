"""Chat messages as clients send them. After validation every content is one string, as templates expect."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.errors import BadRequest
from gateway.schemas.base import WireModel, parse_json

PART_SEPARATOR = "\n"
"""Joins the text parts of one message, as other servers do for templates that take strings."""

MAX_TOOL_CALLS = 1024
"""Most calls of one message."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")

_TEXT_KEYS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Part types that are text, and the key that holds it."""


def _join_parts(content: object) -> object:
    """Turns a list of text parts, or a single part, into one string; other values pass on to the type check."""
    if isinstance(content, dict):
        return _part_text(content, "")
    if isinstance(content, list):
        return PART_SEPARATOR.join(_part_text(part, f"[{position}]") for position, part in enumerate(content))
    return content


def _part_text(part: object, at: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise PydanticCustomError("part_type", "a content part must be an object with a 'type'", {"at": at})
    key = _TEXT_KEYS.get(kind)
    if key is None:
        message = "content parts of type '{kind}' are not supported by this model"
        raise PydanticCustomError("unsupported_part", message, {"at": at, "kind": kind[:80]})
    text = part.get(key)
    if not isinstance(text, str):
        raise PydanticCustomError("string_type", "'{key}' must be a string", {"at": f"{at}.{key}", "key": key})
    return text


AnyContent = str | dict[str, Any] | list[str | dict[str, Any]]
"""What clients send: text, one content part, or several."""

Content = Annotated[str, BeforeValidator(_join_parts, json_schema_input_type=AnyContent)]


class FunctionCall(WireModel):
    """Which function the model called; `arguments` is JSON text as the model wrote it."""

    name: str
    arguments: str = "{}"

    def for_template(self) -> dict[str, Any]:
        """The call with its arguments as an object, which templates iterate; as text where they are no JSON object."""
        try:
            arguments = parse_json(self.arguments.encode())
        except (BadRequest, UnicodeEncodeError):
            return {"name": self.name, "arguments": self.arguments}
        return {"name": self.name, "arguments": arguments}


class ToolCall(WireModel):
    """One call in an assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates know it."""
        call = {"type": self.type, "function": self.function.for_template()}
        return call if self.id is None else {"id": self.id, **call}


class ServerToolError(WireModel):
    """Why a call of the server has no result."""

    code: str = "tool_failed"
    message: str = ""


class ServerToolCall(WireModel):
    """A call that the server made while it gave an earlier answer, as that answer told it."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    server_label: str | None = None
    arguments: str = "{}"
    output: str | None = None
    error: ServerToolError | None = None

    def for_template(self) -> list[dict[str, Any]]:
        """The call and what came of it, as chat templates know them."""
        function = FunctionCall(name=_NO_NAME.sub("_", self.name)[:64], arguments=self.arguments or "{}")
        call = ToolCall(id=self.id, function=function).for_template()
        told = self.output
        if told is None:
            told = f"error: {self.error.code}: {self.error.message}" if self.error is not None else ""
        elif self.error is not None:
            told = f"error: {told}"
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": self.id, "content": told},
        ]


class Message(WireModel):
    """One turn of a conversation.

    Attributes:
        content: One string; None where the client left it out.
        tool_call_id: Of a tool message: which call it answers.
        reasoning_content: What a reasoning model thought before an earlier answer; `reasoning` means the same.
        server_tool_calls: Of an assistant's message: the calls that the server made before its content.
    """

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] = Field(default_factory=list)
    tool_call_id: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    server_tool_calls: Annotated[list[ServerToolCall], Field(max_length=MAX_TOOL_CALLS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        if self.content is None and self.role in ("system", "developer", "user"):
            raise PydanticCustomError("missing_content", "a {role} message needs content", {"role": self.role})
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("missing_call_id", "a tool message needs 'tool_call_id'")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it: absent keys are absent, a tool answer always has text."""
        fields = self.model_dump(exclude_none=True, exclude={"reasoning", "tool_calls", "server_tool_calls"})
        thought = self.reasoning_content or self.reasoning
        if thought is not None:
            fields["reasoning_content"] = thought
        if self.tool_calls:
            fields["tool_calls"] = [call.for_template() for call in self.tool_calls]
        fields.setdefault("content", "")
        return fields

    def turns(self) -> list[dict[str, Any]]:
        """The message, after those of the calls that the server made for it."""
        calls = self.server_tool_calls if self.role == "assistant" else ()
        return [*(one for call in calls for one in call.for_template()), self.for_template()]
