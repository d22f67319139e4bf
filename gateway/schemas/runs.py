"""Bodies of /v1/runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gateway.schemas.base import MAX_FIELDS, StrictModel, TokenId
from gateway.schemas.chat import MAX_MESSAGES, MAX_TOOLS
from gateway.schemas.extensions import ExtensionFields, Source
from gateway.schemas.faults import exactly_one
from gateway.schemas.messages import Message
from gateway.schemas.responses import Metadata
from gateway.schemas.tools import Tool


class RunRequest(StrictModel):
    """A program that runs on its own.

    Attributes:
        source: A script.
        name: A program that is known to the server, as `name` or `name@version`; instead of `source`.
        model: The name of the model.
        messages: What the script sees as `request.messages`.
        prompt: What it sees as `request.prompt`: text or token ids.
        tools: What it sees as `request.tools`.
        params: What it sees as `request.params`.
        args: What it sees as `request.args`; checked against the program's own `params`.
        limits: Smaller limits than the server's own.
        strict_path: Refuse work that would have to run on a slower lane than this one.
        metadata: Kept with the run.
        stream: Answer with the events of the run.
        cache_salt: Prefix pages are shared only among requests of the same salt.
    """

    source: Source | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    model: str | None = None
    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] = Field(default_factory=list)
    prompt: str | list[TokenId] = ""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    params: Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)] = Field(default_factory=dict)
    args: Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)] = Field(default_factory=dict)
    limits: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict)
    strict_path: Literal["fused", "device", "host"] | None = None
    metadata: Metadata | None = None
    stream: bool = False
    cache_salt: str | None = None

    @model_validator(mode="after")
    def _check_program(self) -> Self:
        exactly_one(source=self.source, name=self.name)
        return self

    @property
    def fields(self) -> ExtensionFields:
        """Which program, and how it is run."""
        return ExtensionFields(
            source=self.source, name=self.name, args=self.args, limits=self.limits, strict_path=self.strict_path
        )


class RunInputRequest(StrictModel):
    """What a client says to a program that runs.

    Attributes:
        input: Any JSON value but null; `lm.receive` returns it.
    """

    input: Any = Field(default=..., description="Any JSON value but null.")
