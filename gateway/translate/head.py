"""What is the same on every chunk and every answer of one request."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
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
        told: Fields that the end of the work brings, and only the last chunk of a stream has.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    kv: dict[str, Any] | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def new(
        cls,
        prefix: str,
        *,
        model: str,
        fingerprint: str,
        kv: dict[str, Any] | None = None,
        told: dict[str, Any] | None = None,
    ) -> Head:
        """Identity of an answer that begins now."""
        name, created = f"{prefix}-{uuid.uuid4().hex}", int(time.time())
        told = {} if told is None else told
        return cls(id=name, created=created, model=model, fingerprint=fingerprint, kv=kv, told=told)

    def body(self, kind: str) -> dict[str, Any]:
        """The common fields of an object of that kind."""
        kv = {} if self.kv is None else {"kv": self.kv}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.fingerprint[:12]}",
            **kv,
            **self.told,
        }
