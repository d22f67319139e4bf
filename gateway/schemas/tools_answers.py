"""What is answered about tools: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # see there
)

from typing_extensions import TypedDict

Effect = Literal["pure", "idempotent", "once", "irreversible"]


class ToolObject(TypedDict):
    """A registered tool or server, without its secrets; of the operator's, nothing of where they are."""

    id: str
    object: Literal["tool"]
    created_at: int
    owned_by: Literal["user", "operator"]
    kind: Literal["http", "mcp", "script", "server"]
    description: str
    parameters: dict[str, Any] | None
    effect: Effect
    timeout_s: float
    max_output_bytes: int
    require_approval: Literal["always", "never"] | dict[str, list[str]] | None
    http: NotRequired[dict[str, Any]]
    mcp: NotRequired[dict[str, Any]]
    script: NotRequired[dict[str, Any]]
    server: NotRequired[dict[str, Any]]


class ToolList(TypedDict):
    """A page of a list of tools."""

    object: Literal["list"]
    data: list[ToolObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedTool(TypedDict):
    """A tool that is not there any more."""

    id: str
    object: Literal["tool.deleted"]
    deleted: Literal[True]


class TestedTool(TypedDict):
    """A tool of a server."""

    name: str
    description: str
    parameters: dict[str, Any]
    effect: Effect


class ToolTest(TypedDict):
    """What came of a test: a server's tools, or what a tool answered."""

    id: str
    object: Literal["tool.test"]
    tools: list[TestedTool] | None
    output: str | None
    is_error: bool
    is_cut: bool
    ms: float


class CallProblem(TypedDict):
    """Why a call has no result, or that its tool says it did not work."""

    code: str
    message: str


class MadeCall(TypedDict):
    """A call that the server made while it answered a chat."""

    id: str
    server_label: str | None
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "failed", "incomplete"]
    output: str | None
    error: CallProblem | None
    ms: float
