"""Uploads: forms that are read while they come, their file straight to disk. Nothing in them is believed."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from gateway.errors import BadRequest, BodyTooLarge
from gateway.state.file_bytes import Draft
from gateway.state.files import FileStore, disk_errors

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORM_ROOM_BYTES = 1024 * 1024
"""What a form may have besides its file."""

MAX_FIELDS = 32
MAX_FIELD_BYTES = 4096
MAX_NAME_CHARS = 255

_WRITE_BYTES = 256 * 1024
"""Written at once, in a thread."""


@dataclass(slots=True)
class _Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    name: str = ""
    filename: str = ""


class _Form:
    """Takes a form apart. What has come of the file so far is in `data`; the caller takes it from there."""

    def __init__(self, boundary: bytes) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.data = bytearray()
        self.is_whole = False
        self._part = _Part()
        self._value = bytearray()
        self._header = bytearray()
        self._header_value = bytearray()
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_part_data": self._take,
            "on_part_end": self._end,
            "on_header_field": self._take_header,
            "on_header_value": self._take_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._name,
            "on_end": self._finish,
        }
        self._parser = MultipartParser(boundary, callbacks)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes.

        Raises:
            BadRequest: They are no form, or not one of ours.
        """
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise BadRequest(f"The request body is no valid form: {error}.", code="invalid_form") from None

    def _begin(self) -> None:
        self._part = _Part()
        self._value.clear()

    def _take_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        self._part.headers[bytes(self._header).lower()] = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def _name(self) -> None:
        _, options = parse_options_header(self._part.headers.get(b"content-disposition", b""))
        self._part.name = options.get(b"name", b"").decode("utf-8", "replace")
        self._part.filename = options.get(b"filename", b"").decode("utf-8", "replace")
        if self._part.name == "file":
            if self.filename is not None:
                raise BadRequest("One file is uploaded at a time.", "file")
            self.filename = self._part.filename
        elif self._part.name in self.fields:
            name = self._part.name[:100]
            raise BadRequest(f"'{name}' is given more than once.", name)
        elif len(self.fields) >= MAX_FIELDS:
            raise BadRequest(f"The form has more than {MAX_FIELDS} fields.", code="invalid_form")

    def _take(self, data: bytes, start: int, end: int) -> None:
        if self._part.name == "file":
            self.data += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            name = self._part.name[:100]
            raise BadRequest(f"'{name}' is longer than {MAX_FIELD_BYTES} bytes.", name)

    def _end(self) -> None:
        if self._part.name != "file":
            self.fields[self._part.name[:100]] = self._value.decode("utf-8", "replace")

    def _finish(self) -> None:
        self.is_whole = True


@dataclass(frozen=True, slots=True)
class Upload:
    """A form that has been read.

    Attributes:
        filename: Of its file, made harmless.
        fields: All others.
    """

    filename: str
    fields: dict[str, str]


async def read_upload(
    content_type: str, body: AsyncIterator[bytes], draft: Draft, files: FileStore, limit_bytes: int
) -> Upload:
    """Reads a form to its end and writes its file to `draft` meanwhile.

    Args:
        content_type: Header of the request.
        body: As it comes.
        draft: Gets the file.
        files: Told how much is on its way.
        limit_bytes: Largest file.

    Raises:
        BadRequest: It is no form, has no file, or does not fit beside the files that are there.
        BodyTooLarge: The file is too large.
        StoreUnavailable: The disk is full.
    """
    _, options = parse_options_header(content_type)
    if not options.get(b"boundary"):
        raise BadRequest("The header 'Content-Type' of a form must tell its boundary.", code="invalid_form")
    try:
        form = _Form(options[b"boundary"])
    except FormParserError as error:
        raise BadRequest(f"The request body is no valid form: {error}.", code="invalid_form") from None
    with ExitStack() as counted:
        async for data in body:
            form.feed(data)
            if draft.size_bytes + len(form.data) > limit_bytes:
                raise BodyTooLarge(limit_bytes)
            if len(form.data) >= _WRITE_BYTES:
                await _write(form, draft, files, counted)
        await _write(form, draft, files, counted)
    if not form.is_whole:
        raise BadRequest("The form ends before its last part does.", code="invalid_form")
    if form.filename is None:
        raise BadRequest("Missing required parameter: 'file'.", "file")
    if not draft.size_bytes:
        raise BadRequest("The file is empty.", "file")
    return Upload(harmless_name(form.filename), form.fields)


async def _write(form: _Form, draft: Draft, files: FileStore, counted: ExitStack) -> None:
    num_bytes = len(form.data)
    await files.check_room(num_bytes)
    files.begin_part(num_bytes)
    counted.callback(files.end_upload, num_bytes)
    with disk_errors():
        await asyncio.to_thread(draft.write, bytes(form.data))
    form.data.clear()


def harmless_name(name: str) -> str:
    """A client's name of a file as a label: its last part, without anything that is not to be printed."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    printable = "".join(char for char in last if unicodedata.category(char)[0] != "C").strip()
    return printable[:MAX_NAME_CHARS] or "file"
