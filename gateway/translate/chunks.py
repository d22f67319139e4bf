"""Chunks of a stream as framed bytes. What never changes is encoded once a stream, not once a token."""

from __future__ import annotations

from typing import Any

import msgspec

from extensions.output import Usage
from gateway.errors import ErrorReply
from gateway.schemas.sampling import StreamOptions
from gateway.translate.head import Head
from gateway.translate.usage import usage_body, usage_json

encode_json = msgspec.json.Encoder().encode
_END = b"}\n\n"


class ChunkFrame:
    """Frames the chunks of one stream: `data: {…}` and a blank line around what changes.

    Args:
        head: Identity of the answer.
        kind: Value of `object`.
        options: What the client wants to know of usage.

    Attributes:
        has_running_usage: Every chunk carries the usage so far.
    """

    def __init__(self, head: Head, kind: str, options: StreamOptions | None) -> None:
        options = options or StreamOptions()
        self.has_running_usage = options.include_usage and options.continuous_usage_stats
        self._include_usage = options.include_usage
        self._head = head
        self._start = b"data: " + encode_json(head.body(kind))[:-1]
        self.before_choice = self._start + b',"choices":['
        self.after_choice = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"

    def choice(self, choice: dict[str, Any], usage: Usage | None = None) -> bytes:
        """A chunk with one choice."""
        return self.raw_choice(encode_json(choice), usage)

    def raw_choice(self, choice: bytes, usage: Usage | None = None) -> bytes:
        """A chunk with one choice that is JSON already."""
        if not self.has_running_usage or usage is None:
            return self.before_choice + choice + self.after_choice
        return self.before_choice + choice + self.running_usage(usage)

    @staticmethod
    def running_usage(usage: Usage) -> bytes:
        """What ends a chunk with a choice where every chunk carries the usage so far."""
        return b'],"usage":%b}\n\n' % usage_json(usage)

    @staticmethod
    def with_field(chunk: bytes, name: str, value: Any) -> bytes:
        """A chunk with one more field beside its choices."""
        return chunk[: -len(_END)] + b"," + encode_json(name) + b":" + encode_json(value) + _END

    def usage(self, usage: Usage) -> bytes:
        """The last chunk, without choices, if the client asked for it or the end of the work has brought something."""
        if not self._include_usage and not self._head.told:
            return b""
        fields = {"usage": usage_body(usage)} if self._include_usage else {}
        last = self._start + b',"choices":[]}\n\n'
        for name, value in {**fields, **self._head.told}.items():
            last = self.with_field(last, name, value)
        return last


def error_event(reply: ErrorReply) -> bytes:
    """A failure after the first byte: clients know it by the top-level `error`."""
    return b"data: " + encode_json(reply.body) + b"\n\n"
