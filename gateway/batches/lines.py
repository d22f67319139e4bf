"""The input of a batch: JSON Lines, one request each, read a few at a time."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from gateway.errors import ModelNotFound

ROOM_BYTES = 65_536
"""What a line may have besides the body of its request."""

MAX_CUSTOM_ID_CHARS = 512
MAX_FAULTS = 100
"""Faults of one file that are told; the rest would be of the same kind."""

_CHUNK_LINES = 64
_BOM = b"\xef\xbb\xbf"
_SKIP_BYTES = 2**20

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank.

    Attributes:
        number: From 1.
        text: Without its line break; None if it is too long to be read.
    """

    number: int
    text: bytes | None


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A request of a line.

    Attributes:
        custom_id: The client's name for it.
        body: As it stands there.
    """

    custom_id: str
    body: bytes


class BadLine(Exception):
    """A line is no request of this batch.

    Attributes:
        code: OpenAI's.
        message: For people.
        param: Which of its fields.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class InputError(Exception):
    """The input cannot be worked on.

    Attributes:
        faults: What is wrong, as the batch object tells it.
    """

    def __init__(self, faults: list[dict[str, Any]]) -> None:
        super().__init__(faults[0]["message"])
        self.faults = faults


async def read_lines(path: Path, limit_bytes: int) -> AsyncGenerator[list[Line], None]:
    """Reads a file from its beginning, some lines at a time, in a thread.

    Args:
        path: Where it is.
        limit_bytes: Longest line.

    Raises:
        OSError: It cannot be read.
    """
    with await asyncio.to_thread(path.open, "rb") as file:
        lines = _lines(file, limit_bytes)
        while chunk := await asyncio.to_thread(_take, lines, limit_bytes):
            yield chunk


def _take(lines: Iterator[Line], limit_bytes: int) -> list[Line]:
    """The next lines, until they are as much as the longest one may be: what is held at once is bounded."""
    chunk: list[Line] = []
    num_bytes = 0
    for line in islice(lines, _CHUNK_LINES):
        chunk.append(line)
        num_bytes += len(line.text or b"")
        if num_bytes >= limit_bytes:
            break
    return chunk


def _lines(file: Any, limit_bytes: int) -> Iterator[Line]:
    number = 0
    while data := file.readline(limit_bytes + 1):
        number += 1
        is_whole = len(data) <= limit_bytes or data.endswith(b"\n")
        if not is_whole:
            _skip(file)
        text = (data.removeprefix(_BOM) if number == 1 else data).strip()
        if text or not is_whole:
            yield Line(number, text if is_whole else None)


def _skip(file: Any) -> None:
    while (data := file.readline(_SKIP_BYTES)) and not data.endswith(b"\n"):
        pass


def read_request(line: Line, endpoint: str) -> LineRequest:
    """What a line asks for.

    Args:
        line: Of the input.
        endpoint: That of the batch.

    Raises:
        BadLine: It is no such request.
    """
    if line.text is None:
        raise BadLine("line_too_long", "This line is longer than a request may be.")
    try:
        fields = _fields_of(line.text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise BadLine("invalid_json_line", "This line is not parseable as a JSON object.") from None
    for name in ("custom_id", "method", "url", "body"):
        if name not in fields:
            raise BadLine("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    custom_id = _text(fields["custom_id"])
    if not custom_id or len(custom_id) > MAX_CUSTOM_ID_CHARS:
        message = f"Invalid 'custom_id': it must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters."
        raise BadLine("invalid_custom_id", message, "custom_id")
    if _text(fields["method"]) != "POST":
        raise BadLine("invalid_method", "Invalid 'method': only 'POST' is supported.", "method")
    if _text(fields["url"]) != endpoint:
        message = f"The URL provided for this request does not match the batch endpoint '{endpoint}'."
        raise BadLine("url_mismatch", message, "url")
    body = bytes(fields["body"])
    if not body.startswith(b"{"):
        raise BadLine("invalid_request", "Invalid 'body': it must be a JSON object.", "body")
    return LineRequest(custom_id, body)


def _text(raw: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class _Model(msgspec.Struct):
    model: Any = None


class InputCheck:
    """Looks at all lines of an input once, before any is worked on. Holds sixteen bytes for each.

    Args:
        endpoint: That of the batch.
        resolve: Raises `ModelNotFound` for a name that is not served.
        max_lines: Most requests.
    """

    def __init__(self, endpoint: str, resolve: Callable[[str | None], str], max_lines: int) -> None:
        self._endpoint = endpoint
        self._resolve = resolve
        self._max_lines = max_lines
        self._seen: set[bytes] = set()
        self._faults: list[dict[str, Any]] = []
        self.num_lines = 0
        self.model: str | None = None

    def look(self, lines: list[Line]) -> None:
        """Takes the next lines.

        Raises:
            InputError: There are too many, or enough faults have been found.
        """
        for line in lines:
            self.num_lines += 1
            if self.num_lines > self._max_lines:
                message = f"The input file has more than {self._max_lines} requests."
                raise InputError([_fault("too_many_tasks", message)])
            try:
                self._check(line)
            except BadLine as bad:
                self._faults.append(_fault(bad.code, bad.message, line.number, bad.param))
            if len(self._faults) >= MAX_FAULTS:
                raise InputError(self._faults)

    def end(self) -> None:
        """There are no more lines.

        Raises:
            InputError: A line was wrong, or there was none.
        """
        if not self.num_lines:
            raise InputError([_fault("empty_file", "The input file is empty.")])
        if self._faults:
            raise InputError(self._faults)

    def _check(self, line: Line) -> None:
        request = read_request(line, self._endpoint)
        digest = hashlib.blake2b(request.custom_id.encode(), digest_size=16).digest()
        if digest in self._seen:
            message = f"The custom_id '{request.custom_id[:100]}' is that of an earlier line; each must be unique."
            raise BadLine("duplicate_custom_id", message, "custom_id")
        self._seen.add(digest)
        try:
            model = msgspec.json.decode(request.body, type=_Model).model
        except (msgspec.DecodeError, RecursionError):
            return  # a fault of the body, which the endpoint itself will tell
        if model is not None and not isinstance(model, str):
            return
        try:
            name = self._resolve(model)
        except ModelNotFound as error:
            raise BadLine("model_not_found", error.message, "body.model") from None
        self.model = self.model or name


def _fault(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "line": line, "message": message, "param": param}


def input_fault(code: str, message: str) -> dict[str, Any]:
    """A fault of a batch as a whole."""
    return _fault(code, message)
