"""Programs on the wire: the `extension` of a request, and the bodies of /v1/extensions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from gateway.schemas.base import MAX_FIELDS, WireModel

Source = Annotated[str, Field(min_length=1)]


class ExtensionFields(WireModel):
    """Which program answers a request, and how it is run.

    Attributes:
        source: A script.
        name: A program that is known to the server, as `name` or `name@version`; instead of `source`.
        args: What the program's `request.args` are; checked against its own `params`.
        limits: Smaller limits than the server's own.
        strict_path: Refuse work that would have to run on a slower lane than this one.
    """

    unsupported: ClassVar = {"sampler": ()}

    source: Source | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    args: Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)] = Field(default_factory=dict)
    limits: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict)
    strict_path: Literal["fused", "device", "host"] | None = None

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        if (self.source is None) == (self.name is None):
            raise PydanticCustomError("exclusive", "it needs either 'source' or 'name'", {})
        return self


class SourceRequest(WireModel):
    """A script to register or to check.

    Attributes:
        source: The script.
    """

    source: Source
