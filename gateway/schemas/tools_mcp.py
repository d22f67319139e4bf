"""Servers that speak MCP, as a request to the Responses API names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from extensions.tools.errors import ToolInvalid
from gateway.schemas.base import WireModel
from gateway.schemas.faults import TAG
from gateway.tools.approval import Approval

MAX_NAMES = 1024
"""Most tools that one server's part of a request names."""

MAX_HEADERS = 64

Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
OwnName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Names = Annotated[list[OwnName], Field(max_length=MAX_NAMES)]


class ToolFilter(WireModel):
    """Tools by name, or all that change nothing."""

    tool_names: Names | None = None
    read_only: bool | None = None

    def takes(self, name: str, *, is_pure: bool) -> bool:
        """Whether a tool passes; a filter that says nothing lets all pass."""
        is_named = self.tool_names is None or name in self.tool_names
        return is_named and (self.read_only is None or self.read_only == is_pure)


class ApprovalFilter(WireModel):
    """Which calls a person is asked about."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


AllowedTools = Annotated[
    Annotated[Names, Tag(f"{TAG}names")] | Annotated[ToolFilter, Tag(f"{TAG}filter")],
    Discriminator(lambda value: TAG + ("names" if isinstance(value, list) else "filter")),
]
RequiredApproval = Annotated[
    Annotated[Literal["always", "never"], Tag(f"{TAG}rule")] | Annotated[ApprovalFilter, Tag(f"{TAG}filter")],
    Discriminator(lambda value: TAG + ("rule" if isinstance(value, str) else "filter")),
]


class McpTool(WireModel):
    """A server whose tools the model may call, and this server calls for it.

    Attributes:
        server_label: Of a registered server; `wye` has all registered tools that belong to no server.
        server_url: Must be the registered one, unless this server lets requests bring their own.
        server_description: Accepted; the model is told of the tools themselves.
        authorization: Sent to the server as a bearer token; kept nowhere and shown to nobody.
        headers: Sent to the server; kept nowhere and shown to nobody.
        allowed_tools: Only these are offered to the model.
        require_approval: Whether a call waits for a person's yes; an operator's own rule can only be made stricter.
        defer_loading: Accepted; tools are always listed at once.
        allowed_callers: Accepted, if the model itself is among them.
    """

    type: Literal["mcp"]
    server_label: Label
    server_url: Annotated[str, Field(max_length=2048)] | None = None
    server_description: str | None = None
    authorization: Annotated[str, Field(min_length=1, max_length=8192)] | None = Field(default=None, repr=False)
    headers: Annotated[dict[str, str], Field(max_length=MAX_HEADERS)] = Field(default_factory=dict, repr=False)
    allowed_tools: AllowedTools | None = None
    require_approval: RequiredApproval | None = None
    defer_loading: bool = False
    allowed_callers: Annotated[list[Literal["direct", "programmatic"]], Field(max_length=8)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_place(cls, data: Any) -> Any:
        for name in ("connector_id", "tunnel_id"):
            if isinstance(data, dict) and data.get(name) is not None:
                message = "'{name}' is not supported by this server; it connects by address"
                raise PydanticCustomError("unsupported_server", message, {"at": f".{name}", "name": name})
        callers = data.get("allowed_callers") if isinstance(data, dict) else None
        if isinstance(callers, list) and callers and "direct" not in callers:
            message = "only the model itself calls tools here: it must name 'direct'"
            raise PydanticCustomError("unsupported_caller", message, {"at": ".allowed_callers"})
        return data

    def takes(self, name: str, *, is_pure: bool) -> bool:
        """Whether the model is offered a tool of this server."""
        allowed = self.allowed_tools
        if allowed is None:
            return True
        return name in allowed if isinstance(allowed, list) else allowed.takes(name, is_pure=is_pure)

    def approval(self) -> Approval:
        """What the request says of asking a person.

        Raises:
            ToolInvalid: Two rules contradict each other.
        """
        asked = self.require_approval
        if not isinstance(asked, ApprovalFilter):
            return Approval(rule=asked)
        always, never = asked.always or ToolFilter(tool_names=[]), asked.never or ToolFilter(tool_names=[])
        if both := set(always.tool_names or ()) & set(never.tool_names or ()):
            raise ToolInvalid(f"'{min(both)}' is under both 'always' and 'never'", "require_approval")
        read_only: Literal["always", "never"] | None = None
        if always.read_only or never.read_only:
            read_only = "always" if always.read_only else "never"
        return Approval(
            # Tools that are under neither are asked about, as OpenAI does.
            rule="always",
            always=frozenset(always.tool_names or ()),
            never=frozenset(never.tool_names or ()),
            read_only=read_only,
        )

    def shown(self) -> dict[str, Any]:
        """The tool as a response repeats it: nothing secret, of an address only whose it is."""
        shown = self.model_dump(exclude={"authorization", "headers", "server_url"})
        if self.server_url is not None:
            scheme, _, rest = self.server_url.partition("://")
            host = rest.partition("/")[0].rpartition("@")[2].partition("?")[0]
            shown["server_url"] = f"{scheme}://{host}/<redacted>" if rest else "<redacted>"
        return shown | {"authorization": None, "headers": None}
