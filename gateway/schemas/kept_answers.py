"""What is answered about responses and conversations: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # see there
)

from typing_extensions import TypedDict

from gateway.schemas.answers import OPEN, ContentLogprob
from gateway.schemas.extension_answers import ProgramAnswer
from gateway.schemas.prefix_answers import PrefixUsed, Retained

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(TypedDict):
    """What a client said."""

    type: Literal["input_text"]
    text: str


class OutputText(TypedDict):
    """What the model said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ContentLogprob]


class RefusalText(TypedDict):
    """What a model refused, as the client gave it back."""

    type: Literal["refusal"]
    refusal: str


class MessageItem(TypedDict):
    """A turn."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText | RefusalText]


class FunctionCallItem(TypedDict):
    """A call that the model made."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(TypedDict):
    """What a call returned."""

    id: str
    type: Literal["function_call_output"]
    status: ItemStatus
    call_id: str
    output: str | list[InputText | RefusalText]


class SummaryText(TypedDict):
    """The thinking in short, as the client gave it back."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(TypedDict):
    """The thinking itself."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(TypedDict):
    """What the model thought."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText]
    encrypted_content: str | None


class McpListedTool(TypedDict):
    """A tool of a server."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None


class McpListItem(TypedDict):
    """The tools of a server."""

    id: str
    type: Literal["mcp_list_tools"]
    server_label: str
    tools: list[McpListedTool]
    error: str | None


class McpCallItem(TypedDict):
    """A call that the server made."""

    id: str
    type: Literal["mcp_call"]
    status: Literal["in_progress", "completed", "incomplete", "calling", "failed"]
    approval_request_id: str | None
    arguments: str
    error: dict[str, Any] | str | None
    name: str
    output: str | None
    server_label: str


class McpApprovalRequestItem(TypedDict):
    """A call that waits for a person's yes."""

    id: str
    type: Literal["mcp_approval_request"]
    arguments: str
    name: str
    server_label: str


class McpApprovalResponseItem(TypedDict):
    """What the person said."""

    id: str
    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str | None


AnyItem = (
    MessageItem
    | FunctionCallItem
    | FunctionOutputItem
    | ReasoningItem
    | McpListItem
    | McpCallItem
    | McpApprovalRequestItem
    | McpApprovalResponseItem
)


class ResponseFailure(TypedDict):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens", "max_tool_calls"]


class ResponseConversation(TypedDict):
    """Which conversation a response belongs to."""

    id: str


class ReasoningShown(TypedDict):
    """How hard the model was to think."""

    effort: str | None
    summary: None


class TextShown(TypedDict):
    """What the text was to be."""

    format: dict[str, Any]
    verbosity: str


class InputTokensDetails(TypedDict):
    """How many input tokens the prefix cache had."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    """How many output tokens are thinking."""

    reasoning_tokens: int


class ResponseUsage(TypedDict):
    """Tokens counted."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ModelResponse(TypedDict):
    """A response: every field, every time."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    completed_at: int | None
    conversation: ResponseConversation | None
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[AnyItem]
    parallel_tool_calls: bool
    presence_penalty: float
    frequency_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: ReasoningShown
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: TextShown
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    extension: NotRequired[ProgramAnswer]
    kv: NotRequired[PrefixUsed]
    retention: NotRequired[Retained]


class ResponseEvent(TypedDict):
    """An event of a response: more of an item, or the response as it is then."""

    __pydantic_config__ = OPEN  # type: ignore[misc]
    type: str
    sequence_number: int


class DeletedResponse(TypedDict):
    """A response that is no more."""

    id: str
    object: Literal["response.deleted"]
    deleted: Literal[True]


class InputTokens(TypedDict):
    """How many tokens an input has."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ItemList(TypedDict):
    """A page of items."""

    object: Literal["list"]
    data: list[AnyItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Conversation(TypedDict):
    """A conversation, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class DeletedConversation(TypedDict):
    """A conversation that is no more."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
