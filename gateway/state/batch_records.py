"""What a batch is, how far it is, and where its results lie: as stored, and as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from gateway.state.store import PREFIX

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
ENDED: frozenset[Status] = frozenset({"failed", "completed", "expired", "cancelled"})
_TIMES = (
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)
USAGE_FIELDS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
"""Counters of tokens of a batch."""


class Fixed(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch is told when it is created.

    Attributes:
        input_file_id: What it reads.
        endpoint: What its lines ask.
        completion_window: As the client wrote it.
        created_at: Unix time.
        expires_at: Unix time at which it ends, whatever is done.
        metadata: The client's.
        output_ttl_s: How long its results are kept.
        scopes: What the key may do with which it was created: its lines may do no more.
    """

    input_file_id: str
    endpoint: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None
    output_ttl_s: int
    scopes: str = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A batch as it is now.

    Attributes:
        id: Ours.
        owner: Whose it is.
        fixed: What does not change.
        status: How far it is.
        fields: Everything else that is stored, as text.
    """

    id: str
    owner: str
    fixed: Fixed
    status: Status
    fields: Mapping[str, str]

    @property
    def num_lines(self) -> int:
        """Requests in the input; 0 until it has been validated."""
        return self._number("total")

    @property
    def num_fruitless(self) -> int:
        """How often it has been taken since a result was last recorded, or since it was given back."""
        return self._number("fruitless")

    @property
    def has_ended(self) -> bool:
        """True if nothing will change any more."""
        return self.status in ENDED

    def shown(self) -> dict[str, Any]:
        """The batch object of the API."""
        fixed, fields = self.fixed, self.fields
        errors = fields.get("errors")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": fixed.endpoint,
            "model": fields.get("model"),
            "errors": None if errors is None else {"object": "list", "data": msgspec.json.decode(errors)},
            "input_file_id": fixed.input_file_id,
            "completion_window": fixed.completion_window,
            "status": self.status,
            "output_file_id": fields.get("output_file_id"),
            "error_file_id": fields.get("error_file_id"),
            "created_at": fixed.created_at,
            "expires_at": fixed.expires_at,
            **{name: self._time(name) for name in _TIMES},
            "request_counts": {name: self._number(name) for name in ("total", "completed", "failed")},
            "usage": self._usage(),
            "metadata": fixed.metadata,
        }

    def _usage(self) -> dict[str, Any]:
        read, cached, written, reasoning = (self._number(name) for name in USAGE_FIELDS)
        return {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": reasoning},
            "total_tokens": read + written,
        }

    def _number(self, name: str) -> int:
        return int(self.fields.get(name, "0"))

    def _time(self, name: str) -> int | None:
        value = self.fields.get(name)
        return None if value is None else int(value)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the result of one line lies.

    Attributes:
        segment: File of the batch's directory.
        offset: In it.
        length: Bytes, the line break included.
        is_ok: Whether the request was answered.
    """

    segment: str
    offset: int
    length: int
    is_ok: bool

    def packed(self) -> str:
        """As text."""
        return f"{self.segment} {self.offset} {self.length} {int(self.is_ok)}"

    @classmethod
    def unpacked(cls, text: bytes) -> Place:
        """From text."""
        segment, offset, length, is_ok = text.decode().split()
        return cls(segment, int(offset), int(length), is_ok == "1")


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Tokens of one answer."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


def batch_key(batch_id: str) -> str:
    """Where a batch is in Redis."""
    return f"{PREFIX}b:{batch_id}"


def lines_key(batch_id: str) -> str:
    """Where the places of its results are in Redis."""
    return f"{PREFIX}bl:{batch_id}"
