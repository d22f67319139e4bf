"""The `retention` of a request: for how long its KV is to be kept when it is over."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.schemas.base import FiniteFloat, PositiveCount, StrictModel


class RetentionWish(StrictModel):
    """A wish to keep the KV of a request and of its answer for those that begin the same.

    Attributes:
        ttl_s: For how many seconds.
        max_bytes: Most KV that is kept for it; a request that holds more is not kept.
        value: The chance that it is used again, as the client sees it.
    """

    ttl_s: Annotated[FiniteFloat, Field(gt=0)]
    max_bytes: PositiveCount | None = None
    value: Annotated[FiniteFloat, Field(ge=0, le=1)] = 0.5
