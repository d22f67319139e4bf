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
        prefix: What its id begins with: `chatcmpl` or `cmpl`.
        model: The name the client asked for.
        fingerprint: Of the model's weights and configuration.
        id: Unique.
        created: Unix time in seconds.
    """

    prefix: str
    model: str
    fingerprint: str
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", f"{self.prefix}-{uuid.uuid4().hex}")

    def body(self, kind: str) -> dict[str, Any]:
        """The common fields of an object of that kind."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.fingerprint[:12]}",
        }
