"""What is answered about detached runs: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import (
    Any,
    Literal,
    NotRequired,  # see there
)

from typing_extensions import TypedDict

from gateway.schemas.extension_answers import ProgramEvent, RunUsage


class RunProgram(TypedDict):
    """Which program runs."""

    name: str | None
    version: str | None
    digest: str


class RunObject(TypedDict):
    """A detached run; what it came to is null before its end."""

    id: str
    object: Literal["run"]
    created_at: int
    ended_at: int | None
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    tenant: str | None
    model: str
    program: RunProgram
    args: dict[str, Any]
    metadata: dict[str, str] | None
    content: str | None
    message: dict[str, Any] | None
    result: Any
    finish_reason: Literal["stop", "length", "tool_calls"] | None
    exec_path: Literal["fused", "device", "host", "mixed"] | None
    exec_reason: str | None
    usage: RunUsage | None
    logs: str | None
    error: dict[str, Any] | None
    last_sequence_number: int
    lives: int
    resumable: bool
    not_resumable_reason: str | None


class RunList(TypedDict):
    """A page of a list of runs, the newest first."""

    object: Literal["list"]
    data: list[RunObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedRun(TypedDict):
    """A run that is not there any more."""

    id: str
    object: Literal["run.deleted"]
    deleted: Literal[True]


class RunInput(TypedDict):
    """Input that a run has been given."""

    object: Literal["run.input"]
    run_id: str
    number: int


class RunEvent(TypedDict):
    """One event of a run: `delta` of a text, `event` or `log` of the script, `run` at the end, `count` of lost ones."""

    type: str
    sequence_number: NotRequired[int]
    delta: NotRequired[str]
    event: NotRequired[ProgramEvent]
    log: NotRequired[str]
    count: NotRequired[int]
    run: NotRequired[RunObject]
    error: NotRequired[dict[str, Any]]
