"""Programs on the wire: the `extension` of a request, and the bodies of /v1/extensions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import MAX_FIELDS, StrictModel
from gateway.schemas.faults import exactly_one

Source = Annotated[str, Field(min_length=1)]


class ExtensionFields(StrictModel):
    """Which program answers a request, and how it is run.

    Attributes:
        source: A script.
        sampler: A device program that draws the tokens of a request that is plain otherwise; instead of a script.
        name: A program that is known to the server, as `name` or `name@version`; instead of `source`.
        args: What the program's `request.args` are; checked against its own `params`. Parameters of a sampler.
        limits: Smaller limits than the server's own.
        strict_path: Refuse work that would have to run on a slower lane than this one.
        trace: Tell what the program does as it happens: contexts, generations, tools, KV over time.
        detached: Go on when the client leaves: the run is kept, see /v1/runs.
    """

    source: Source | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    sampler: Source | None = None
    args: Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)] = Field(default_factory=dict)
    limits: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict)
    strict_path: Literal["fused", "device", "host"] | None = None
    trace: bool = False
    detached: bool = False

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        exactly_one(source=self.source, name=self.name, sampler=self.sampler)
        if self.sampler is not None and self.limits:
            raise PydanticCustomError("exclusive", "a 'sampler' has no limits", {"at": ".limits"})
        if self.sampler is not None and self.strict_path == "fused":
            raise PydanticCustomError("exclusive", "a 'sampler' runs on the device lane", {"at": ".strict_path"})
        if self.sampler is not None and self.detached:
            raise PydanticCustomError("exclusive", "a plain request cannot be detached", {"at": ".detached"})
        return self


class SourceRequest(StrictModel):
    """A script to register or to check.

    Attributes:
        source: The script.
    """

    source: Source
