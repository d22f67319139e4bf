"""What is the same on every chunk and every answer of one request."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """Identity of one answer.

    Attributes:
        id: Unique; begins with `chatcmpl-` or `cmpl-`.
        created: Unix time in seconds.
        model: The name the client asked for.
        fingerprint: Of the model's weights and configuration.
        kv: What was found of the prefix that the request names; None if it names none.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    kv: dict[str, Any] | None = None

    @classmethod
    def new(cls, prefix: str, *, model: str, fingerprint: str, kv: dict[str, Any] | None = None) -> Head:
        """Identity of an answer that begins now."""
        name, created = f"{prefix}-{uuid.uuid4().hex}", int(time.time())
        return cls(id=name, created=created, model=model, fingerprint=fingerprint, kv=kv)

    def body(self, kind: str) -> dict[str, Any]:
        """The common fields of an object of that kind."""
        told = {} if self.kv is None else {"kv": self.kv}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.fingerprint[:12]}",
            **told,
        }
