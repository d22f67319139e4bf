"""The body of POST /v1/batches."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import WireModel
from gateway.schemas.responses import Metadata, StoredId

MIN_TTL_S = 3600
MAX_TTL_S = 30 * 24 * 3600
"""Bounds of the time that a file may be told to be kept, and how long files of batches are kept if nobody says."""

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""What a client may upload a file for."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_WINDOW = re.compile("([1-9][0-9]{0,6})([smhd])")

Ttl = Annotated[int, Field(ge=MIN_TTL_S, le=MAX_TTL_S)]


class ExpiresAfter(WireModel):
    """When a file goes by itself.

    Attributes:
        anchor: From when on.
        seconds: How long.
    """

    anchor: Literal["created_at"]
    seconds: Ttl


class BatchRequest(WireModel):
    """Work on the requests of a file.

    Attributes:
        input_file_id: A file with the purpose `batch`.
        endpoint: What all of its requests ask.
        completion_window: How long it may take: `24h`, or any number of `s`, `m`, `h` or `d` up to 30 days.
        metadata: Kept with the batch.
        output_expires_after: When the files that it writes go.
    """

    input_file_id: StoredId
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: ExpiresAfter | None = None

    @field_validator("completion_window")
    @classmethod
    def _check_window(cls, value: str) -> str:
        found = _WINDOW.fullmatch(value)
        if found is None or int(found[1]) * _UNITS[found[2]] > MAX_TTL_S:
            raise PydanticCustomError("window", "it must be '24h', or a number with s, m, h or d, up to 30 days")
        return value

    @property
    def window_s(self) -> int:
        """Seconds that it may take."""
        return int(self.completion_window[:-1]) * _UNITS[self.completion_window[-1]]
