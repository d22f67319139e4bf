"""What is answered about programs: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # see there
)

from typing_extensions import TypedDict


class RunUsage(TypedDict):
    """What a program used."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    host_calls: int
    generations: int
    contexts: int
    max_contexts: int
    children: int
    tool_calls: int
    http_calls: int
    output_bytes: int
    log_bytes: int
    wall_s: float
    first_call_s: float | None
    kv_byte_seconds: int


class TraceNote(TypedDict):
    """Something that a program did or used."""

    at_ms: float
    type: str
    context: NotRequired[int]
    parent: NotRequired[int | None]
    lane: NotRequired[Literal["fused", "device", "host"]]
    tokens: NotRequired[int]
    bytes: NotRequired[int]
    call: NotRequired[str]
    name: NotRequired[str]
    is_error: NotRequired[bool]


class ProgramAnswer(TypedDict):
    """What a program came to, beside the text."""

    run_id: str
    result: Any
    exec_path: Literal["fused", "device", "host", "mixed"]
    exec_reason: str | None
    usage: RunUsage
    logs: str
    trace: NotRequired[list[TraceNote]]


class ProgramEvent(TypedDict):
    """An event of a program's own."""

    type: str
    data: Any


class ProgramNews(TypedDict):
    """What a program told besides text: one of these."""

    event: NotRequired[ProgramEvent]
    log: NotRequired[str]
    trace: NotRequired[TraceNote]


class ExtensionObject(TypedDict):
    """A program under its name and version; its script where one asks for it alone."""

    id: str
    object: Literal["extension"]
    created_at: int
    owned_by: Literal["user", "wye"]
    name: str
    version: str
    digest: str
    description: str
    params: dict[str, Any] | None
    capabilities: list[str]
    ext_api: int
    source: NotRequired[str]


class ExtensionList(TypedDict):
    """A page of a list of programs."""

    object: Literal["list"]
    data: list[ExtensionObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedExtension(TypedDict):
    """A version that is not there any more."""

    id: str
    object: Literal["extension.deleted"]
    deleted: Literal[True]


class ScriptProblem(TypedDict):
    """What is wrong with a script; lines and columns count from 1."""

    line: int
    column: int
    end_line: int
    end_column: int
    severity: Literal["error", "warning"]
    rule: str | None
    message: str


class ExtensionCheck(TypedDict):
    """Whether a script can run."""

    object: Literal["extension.check"]
    valid: bool
    diagnostics: list[ScriptProblem]
    extension: ExtensionObject | None
