"""What is answered about files and batches: for the API's description alone, as `gateway.schemas.answers`."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict  # see there


class FileObject(TypedDict):
    """What is known of a file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(TypedDict):
    """A page of a list of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(TypedDict):
    """A file that is not there any more."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchFault(TypedDict):
    """Something wrong with the input of a batch."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(TypedDict):
    """Why a batch failed."""

    object: Literal["list"]
    data: list[BatchFault]


class BatchCounts(TypedDict):
    """How far a batch is."""

    total: int
    completed: int
    failed: int


class BatchInputDetails(TypedDict):
    """Of the tokens of all prompts."""

    cached_tokens: int


class BatchOutputDetails(TypedDict):
    """Of the tokens of all answers."""

    reasoning_tokens: int


class BatchUsage(TypedDict):
    """Sums over all answers of a batch."""

    input_tokens: int
    input_tokens_details: BatchInputDetails
    output_tokens: int
    output_tokens_details: BatchOutputDetails
    total_tokens: int


class BatchObject(TypedDict):
    """A batch as it is now."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    """A page of a list of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool
