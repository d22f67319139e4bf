"""Events of detached runs: JSON with a type and a number, as they are stored and as they are sent."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.state.run_store import RunRecord, Status
from gateway.tenancy.principal import TENANT_MARK
from gateway.translate.chunks import encode_json

STARTED = "run.started"
TEXT = "run.text.delta"
EVENT = "run.event"
LOG = "run.log"
DROPPED = "run.events_dropped"

ENDS: dict[Status, str] = {"completed": "run.completed", "failed": "run.failed", "cancelled": "run.cancelled"}
"""The last event of a run, by its status."""


class EventHead(msgspec.Struct):
    """What is read of a stored event.

    Attributes:
        type: Its kind.
        sequence_number: Its place; the first has 0.
    """

    type: str
    sequence_number: int


read_head = msgspec.json.Decoder(EventHead).decode
"""Reads the head of a stored event."""


def event(kind: str, number: int, **fields: Any) -> bytes:
    """An event as it is stored."""
    return encode_json({"type": kind, "sequence_number": number, **fields})


def framed(data: bytes, head: EventHead) -> bytes:
    """An event as it is sent; its number is what `Last-Event-ID` brings back."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (head.sequence_number, head.type.encode(), data)


def framed_error(error: dict[str, Any]) -> bytes:
    """An error of the stream, not of the run: it has no number, so whoever comes back misses nothing."""
    return b"event: error\ndata: %s\n\n" % encode_json({"type": "error", "error": error})


def framed_event(kind: str, number: int, **fields: Any) -> bytes:
    """An event that is made when it is sent."""
    return framed(event(kind, number, **fields), EventHead(kind, number))


def run_body(record: RunRecord) -> dict[str, Any]:
    """A run on the wire."""
    answer = record.answer
    return {
        "id": record.id,
        "object": "run",
        "created_at": record.created,
        "ended_at": record.ended,
        "status": record.status,
        "tenant": record.owner if record.owner.startswith(TENANT_MARK) else None,
        **record.head,
        "content": answer.get("content"),
        "message": answer.get("message"),
        "result": answer.get("result"),
        "finish_reason": answer.get("finish_reason"),
        "exec_path": answer.get("exec_path"),
        "exec_reason": answer.get("exec_reason"),
        "usage": answer.get("usage"),
        "logs": answer.get("logs"),
        "error": record.error,
        "last_sequence_number": record.last,
        "lives": record.lives + 1,
        "resumable": record.is_resumable,
        "not_resumable_reason": record.fixed or None,
    }
