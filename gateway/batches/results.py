"""Results of a batch: the lines of its output, in OpenAI's shape, and how they become a file."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import IO, Any

import msgspec

from gateway.batches.calls import Answer
from gateway.errors import BadRequest
from gateway.state.batch_records import LineUsage, Place
from gateway.state.file_bytes import Draft

_CANNOT = {
    "stream": "A request of a batch cannot be streamed.",
    "background": "A request of a batch cannot run in the background.",
}

UNDONE = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "The batch was cancelled before this request was executed."),
    "failed": ("batch_failed", "The batch failed before this request was executed."),
}
"""Code and message of requests that were never made, by how their batch ended."""


class _Refusable(msgspec.Struct):
    stream: Any = None
    background: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


def check_body(body: bytes) -> None:
    """Refuses what makes no sense where nobody waits.

    Raises:
        BadRequest: It asks for a stream, or to run in the background.
    """
    try:
        asked = msgspec.json.decode(body, type=_Refusable)
    except (msgspec.DecodeError, RecursionError):
        return  # the endpoint itself tells what is wrong
    for name, message in _CANNOT.items():
        if getattr(asked, name) is True:
            raise BadRequest(message, name)


def result_line(custom_id: str, answer: Answer) -> bytes:
    """The line of a request that was answered, well or badly."""
    body = bytes(answer.body) or b"null"
    if b"\n" in body:
        body = msgspec.json.format(body, indent=-1)
    response = {"status_code": answer.status, "request_id": answer.request_id, "body": msgspec.Raw(body)}
    return _encode({"id": _id(), "custom_id": custom_id, "response": response, "error": None})


def undone_line(custom_id: str, ending: str) -> bytes:
    """The line of a request that was never made, as its batch was `expired`, `cancelled` or `failed` first."""
    code, message = UNDONE[ending]
    error = {"code": code, "message": message}
    return _encode({"id": _id(), "custom_id": custom_id, "response": None, "error": error})


def usage_of(answer: Answer) -> LineUsage:
    """What an answer has used, in the terms of any endpoint."""
    try:
        usage = msgspec.json.decode(answer.body, type=_Answered).usage or _Usage()
    except msgspec.DecodeError:
        return LineUsage()
    read = usage.input_tokens_details or usage.prompt_tokens_details or _Details()
    written = usage.output_tokens_details or usage.completion_tokens_details or _Details()
    return LineUsage(
        usage.input_tokens or usage.prompt_tokens,
        read.cached_tokens,
        usage.output_tokens or usage.completion_tokens,
        written.reasoning_tokens,
    )


def _id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"


def _encode(line: dict[str, Any]) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class ResultCopier:
    """Copies results from where they were recorded to the output file and the error file, one at a time.

    Args:
        directory: That of the batch.
        output: Gets requests that were answered.
        errors: Gets the others.
    """

    def __init__(self, directory: Path, output: Draft, errors: Draft) -> None:
        self._directory = directory
        self._output = output
        self._errors = errors
        self._segments: dict[str, IO[bytes]] = {}

    def copy(self, place: Place) -> None:
        """Copies one result.

        Raises:
            OSError: It cannot be read or written.
        """
        file = self._segments.get(place.segment)
        if file is None:
            file = self._segments[place.segment] = (self._directory / place.segment).open("rb")
        file.seek(place.offset)
        data = file.read(place.length)
        if len(data) != place.length or not data.endswith(b"\n"):
            raise OSError(f"{place.segment} of a batch is damaged")
        (self._output if place.is_ok else self._errors).write(data)

    def add_error(self, line: bytes) -> None:
        """Writes the line of a request that was never made.

        Raises:
            OSError: It cannot be written.
        """
        self._errors.write(line)

    def close(self) -> None:
        """Closes what was read."""
        for file in self._segments.values():
            file.close()
