"""Exported prefixes on the wire: the `prefix` of a request, and the bodies of /v1/prefixes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from extensions.programs.prefixes import MAX_ALLOWED, Visibility, name_error
from gateway.schemas.base import MAX_FIELDS, FiniteFloat, StrictModel, TokenId
from gateway.schemas.extensions import ExtensionFields
from gateway.schemas.faults import exactly_one
from gateway.schemas.messages import Message
from gateway.schemas.tools import Tool

MAX_MESSAGES = 65_536
MAX_TOOLS = 4096


def _checked_name(name: str) -> str:
    if (wrong := name_error(name)) is not None:
        raise PydanticCustomError("name", "it {wrong}", {"wrong": wrong})
    return name


Name = Annotated[str, AfterValidator(_checked_name)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Ttl = Annotated[FiniteFloat, Field(ge=1)]
Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class PrefixUse(StrictModel):
    """Which prefix a request goes on from.

    Attributes:
        id: Its id.
        name: Its name instead, of a prefix of one's own.
        on_miss: What becomes of the request if the KV is not in memory any more.
    """

    id: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    on_miss: Literal["recompute", "fail"] = "recompute"

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        exactly_one(id=self.id, name=self.name)
        if self.id is not None and not self.id.startswith("pfx_"):
            raise PydanticCustomError("prefix_id", "it must begin with 'pfx_'", {"at": ".id"})
        return self

    @property
    def reference(self) -> str:
        """The id, or the name."""
        return self.id or self.name or ""


class PrefixProgram(StrictModel):
    """A program whose context is to be kept.

    Attributes:
        source: A script.
        name: A program that is known to the server instead, as `name` or `name@version`.
        args: What the program's `request.args` are.
        limits: Smaller limits than the server's own.
    """

    source: Annotated[str, Field(min_length=1)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    args: Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)] = Field(default_factory=dict)
    limits: Annotated[dict[str, Any], Field(max_length=64)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        exactly_one(source=self.source, name=self.name)
        return self

    @property
    def fields(self) -> ExtensionFields:
        """The same as the `extension` of a request."""
        return ExtensionFields(source=self.source, name=self.name, args=self.args, limits=self.limits)


class PrefixRequest(StrictModel):
    """A prefix to be computed and kept.

    Attributes:
        name: Its name; a name that is taken is given to the new version.
        model: Name of a served model.
        messages: A conversation.
        tools: Functions that the model is told of in it.
        input: A text instead.
        tokens: Token ids instead.
        response_id: A stored response instead: its conversation, with its answer.
        program: A program instead: the context that it exports under the name, or returns.
        ttl: Seconds that it is kept.
        ttl_mode: Whether they begin anew with every use.
        visibility: Who may use it.
        allow: Labels of those who may, of those that it is visible to.
        metadata: Of one's own.
    """

    name: Name
    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    input: Annotated[str, Field(min_length=1)] | None = None
    tokens: Annotated[list[TokenId], Field(min_length=1)] | None = None
    response_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")] | None = None
    program: PrefixProgram | None = None
    ttl: Ttl | None = None
    ttl_mode: Literal["fixed", "sliding"] = "sliding"
    visibility: Visibility = "tenant"
    allow: Annotated[list[Label], Field(max_length=MAX_ALLOWED)] = Field(default_factory=list)
    metadata: Metadata = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        exactly_one(
            messages=self.messages,
            input=self.input,
            tokens=self.tokens,
            response_id=self.response_id,
            program=self.program,
        )
        if self.tools and self.messages is None:
            raise PydanticCustomError("exclusive", "it needs 'messages'", {"at": "tools"})
        return self


class PrefixUpdate(StrictModel):
    """What is to be otherwise of a prefix.

    Attributes:
        ttl: Seconds that it is kept from now on.
        ttl_mode: Whether they begin anew with every use.
        visibility: Who may use it.
        allow: Labels of those who may, of those that it is visible to.
        metadata: Of one's own, all of it.
    """

    ttl: Ttl | None = None
    ttl_mode: Literal["fixed", "sliding"] | None = None
    visibility: Visibility | None = None
    allow: Annotated[list[Label], Field(max_length=MAX_ALLOWED)] | None = None
    metadata: Metadata | None = None
