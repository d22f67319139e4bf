"""Items of the Responses API: what a client may put into `input`, in the form in which they are kept and shown.

Each is validated into a plain object with an `id`, all its fields spelled out; `gateway.translate.responses_input`
makes chat messages of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from gateway.schemas.base import WireModel
from gateway.schemas.faults import fault_of

MAX_ITEMS = 65_536
"""Most items of one request."""

MAX_PARTS = 4096
"""Most content parts of one item."""

Status = Literal["in_progress", "completed", "incomplete"]
ItemId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
ServerLabel = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
Item = dict[str, Any]


def new_id(prefix: str) -> str:
    """An id that nothing else has, such as `msg_…`."""
    return f"{prefix}_{uuid.uuid4().hex}"


class _Message(WireModel):
    """A turn: the easy form has text and no type, the long one has parts."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    id: ItemId | None = None
    status: Status = "completed"

    def shown(self) -> Item:
        own_type = "output_text" if self.role == "assistant" else "input_text"
        parts = [self.content] if isinstance(self.content, str) else self.content
        if len(parts) > MAX_PARTS:
            raise PydanticCustomError(
                "too_long", "it has more than {most} parts", {"at": ".content", "most": MAX_PARTS}
            )
        content = [_part(part, own_type, f".content[{number}]") for number, part in enumerate(parts)]
        item_id = self.id or new_id("msg")
        return {"id": item_id, "type": "message", "status": self.status, "role": self.role, "content": content}


class _FunctionCall(WireModel):
    """A call that the model made earlier."""

    call_id: Annotated[str, Field(min_length=1, max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    id: ItemId | None = None
    status: Status = "completed"

    def shown(self) -> Item:
        fields = self.model_dump(exclude={"id"})
        return {"id": self.id or new_id("fc"), "type": "function_call", **fields}


class _FunctionCallOutput(WireModel):
    """What a call returned; parts are text."""

    call_id: Annotated[str, Field(min_length=1, max_length=256)]
    output: str | Annotated[list[Any], Field(max_length=MAX_PARTS)]
    id: ItemId | None = None
    status: Status = "completed"

    def shown(self) -> Item:
        output = self.output
        if not isinstance(output, str):
            output = [_part(part, "input_text", f".output[{number}]") for number, part in enumerate(output)]
        fields = {"call_id": self.call_id, "output": output, "status": self.status}
        return {"id": self.id or new_id("fco"), "type": "function_call_output", **fields}


class _SummaryText(WireModel):
    type: Literal["summary_text"]
    text: str


class _ReasoningText(WireModel):
    type: Literal["reasoning_text"]
    text: str


class _Reasoning(WireModel):
    """What a model thought earlier; `encrypted_content` of others is kept but says nothing to us."""

    id: ItemId | None = None
    summary: Annotated[list[_SummaryText], Field(max_length=MAX_PARTS)] = Field(default_factory=list)
    content: Annotated[list[_ReasoningText], Field(max_length=MAX_PARTS)] = Field(default_factory=list)
    encrypted_content: str | None = None
    status: Status = "completed"

    def shown(self) -> Item:
        return {"id": self.id or new_id("rs"), "type": "reasoning", **self.model_dump(exclude={"id"})}


class _ItemReference(WireModel):
    """An item of an earlier response, or of a conversation, by its id."""

    id: ItemId

    def shown(self) -> Item:
        return {"id": self.id, "type": "item_reference"}


class _McpListed(WireModel):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input_schema: dict[str, Any] = Field(default_factory=dict)
    description: str | None = None
    annotations: dict[str, Any] | None = None


class _McpListTools(WireModel):
    """What tools a server had; the model is told of those that it has now."""

    id: ItemId | None = None
    server_label: ServerLabel
    tools: Annotated[list[_McpListed], Field(max_length=MAX_PARTS)] = Field(default_factory=list)
    error: str | None = None

    def shown(self) -> Item:
        return {"id": self.id or new_id("mcpl"), "type": "mcp_list_tools", **self.model_dump(exclude={"id"})}


class _McpCall(WireModel):
    """A call that the server made earlier, and what came of it."""

    id: ItemId | None = None
    server_label: ServerLabel
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    output: str | None = None
    error: dict[str, Any] | str | None = None
    approval_request_id: ItemId | None = None
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"] = "completed"

    def shown(self) -> Item:
        return {"id": self.id or new_id("mcp"), "type": "mcp_call", **self.model_dump(exclude={"id"})}


class _McpApprovalRequest(WireModel):
    """A call that waits for a person's yes."""

    id: ItemId
    server_label: ServerLabel
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str

    def shown(self) -> Item:
        return {"id": self.id, "type": "mcp_approval_request", **self.model_dump(exclude={"id"})}


class _McpApprovalResponse(WireModel):
    """What the person said."""

    approval_request_id: ItemId
    approve: bool
    id: ItemId | None = None
    reason: Annotated[str, Field(max_length=4096)] | None = None

    def shown(self) -> Item:
        return {"id": self.id or new_id("mcpa"), "type": "mcp_approval_response", **self.model_dump(exclude={"id"})}


_Kind = (
    _Message
    | _FunctionCall
    | _FunctionCallOutput
    | _Reasoning
    | _ItemReference
    | _McpListTools
    | _McpCall
    | _McpApprovalRequest
    | _McpApprovalResponse
)
_KINDS: dict[str, type[_Kind]] = {
    "message": _Message,
    "function_call": _FunctionCall,
    "function_call_output": _FunctionCallOutput,
    "reasoning": _Reasoning,
    "item_reference": _ItemReference,
    "mcp_list_tools": _McpListTools,
    "mcp_call": _McpCall,
    "mcp_approval_request": _McpApprovalRequest,
    "mcp_approval_response": _McpApprovalResponse,
}


def _items(value: object) -> list[Item]:
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("list_type", "it must be a string or a list of items")
    if len(value) > MAX_ITEMS:
        raise PydanticCustomError("too_long", "it has more than {most} items", {"most": MAX_ITEMS})
    return [_item(item, number) for number, item in enumerate(value)]


def _item(value: object, number: int) -> Item:
    at = f"[{number}]"
    if not isinstance(value, dict):
        raise PydanticCustomError("dict_type", "an item must be an object", {"at": at})
    kind = value.get("type")
    if kind is None:
        kind = "message" if "role" in value else "item_reference" if "id" in value else None
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        message = "items of type '{kind}' are not supported by this server"
        shown = kind[:80] if isinstance(kind, str) else "none"
        raise PydanticCustomError("unsupported_item", message, {"at": f"{at}.type", "kind": shown})
    return _located(at, value, lambda: model.model_validate(value).shown())


def _located(at: str, value: object, make: Callable[[], Item]) -> Item:
    """Runs `make`; what it complains about of `value` is said to be below `at`."""
    try:
        return make()
    except ValidationError as error:
        fault = fault_of(error, value)
        message = "it is missing" if fault.kind == "missing" else fault.reason
        path = fault.path if fault.path.startswith("[") or not fault.path else f".{fault.path}"
        raise PydanticCustomError("item_type", "{what}", {"at": at + path, "what": message}) from None
    except PydanticCustomError as error:
        context = dict(error.context or {})
        raise PydanticCustomError(
            error.type, error.message_template, {**context, "at": at + str(context.get("at", ""))}
        ) from None


def _part(value: object, own_type: str, at: str) -> Item:
    """One content part: text that is shown as what its side of the conversation sends."""
    if isinstance(value, str):
        value = {"type": own_type, "text": value}
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise PydanticCustomError("part_type", "a content part must be an object with a 'type'", {"at": at})
    key = "refusal" if kind == "refusal" else "text"
    if kind not in ("input_text", "output_text", "text", "refusal"):
        message = "content parts of type '{kind}' are not supported by this model"
        raise PydanticCustomError("unsupported_part", message, {"at": at, "kind": kind[:80]})
    text = value.get(key)
    if not isinstance(text, str):
        raise PydanticCustomError("string_type", "'{key}' must be a string", {"at": f"{at}.{key}", "key": key})
    if kind == "refusal":
        return {"type": "refusal", "refusal": text}
    if own_type == "output_text":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


Items = Annotated[list[Item], BeforeValidator(_items, json_schema_input_type=str | list[dict[str, Any]])]
