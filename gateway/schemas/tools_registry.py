"""Bodies of /v1/tools. What a description says in full is checked by `extensions.tools`; here are its types."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from gateway.schemas.base import MAX_FIELDS, FiniteFloat, PositiveCount, StrictModel, WireModel

Effect = Literal["pure", "idempotent", "once", "irreversible"]
Fields = Annotated[dict[str, Any], Field(max_length=MAX_FIELDS)]


class ToolDescription(WireModel):
    """A tool (`name`, `kind` and the field of that kind), or a server that speaks MCP (`label` and `url`).

    Attributes:
        name: What models call a tool by.
        label: What requests call a server by.
        kind: What it is; a server may leave it out.
        description: Tells models what a tool is for.
        parameters: JSON Schema of a tool's arguments.
        http: `url`, `method`, `headers`.
        mcp: `server` (as a server is described) and `tool`, for one tool of a server.
        script: `source`, a program.
        url: Of a server.
        headers: Sent to a server.
        allowed_tools: Of a server, only these.
        effect: What calls do to the world: of a tool, or of those of a server's that `effects` does not name.
        effects: Of a server's tools, by name.
        require_approval: `always`, `never`; of a server also lists of names under these.
        timeout_s: Longest that a call may take.
        max_output_bytes: Most that is read of an answer.
        max_parallel: Calls of a tool at once.
        list_ttl_s: How long a server's list of tools is remembered.
    """

    # What is not known here is refused, not ignored: a slip in a name must not weaken a rule.
    model_config = ConfigDict(extra="allow")

    name: str | None = None
    label: str | None = None
    kind: Literal["http", "mcp", "script", "server"] | None = None
    description: str | None = None
    parameters: Fields | None = None
    http: Fields | None = None
    mcp: Fields | None = None
    script: Fields | None = None
    url: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: list[str] | None = None
    effect: Effect | None = None
    effects: dict[str, Effect] | None = None
    require_approval: Literal["always", "never"] | dict[str, Any] | None = None
    timeout_s: FiniteFloat | None = None
    max_output_bytes: PositiveCount | None = None
    max_parallel: PositiveCount | None = None
    list_ttl_s: FiniteFloat | None = None


class ToolTestRequest(StrictModel):
    """A call of a tool, to see that it works.

    Attributes:
        tool: Of a server, which of its tools; left out, they are listed.
        arguments: For the tool.
    """

    tool: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    arguments: Fields = Field(default_factory=dict)
