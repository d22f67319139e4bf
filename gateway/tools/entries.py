"""What the registry holds: a tool, or a server that speaks MCP, with who registered it and when to ask a person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from extensions.tools.errors import ToolInvalid
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from gateway.tools.approval import Approval

Owner = Literal["user", "operator"]

OWN_LABEL = "wye"
"""Label under which requests of the Responses API find tools that belong to no server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One tool or one server.

    Attributes:
        target: What it is.
        approval: When a person is asked before a call.
        owner: Who registered it.
        created: Unix time in seconds; 0 for what the operator's file has.
    """

    target: ToolSpec | McpServer
    approval: Approval = field(default_factory=Approval)
    owner: Owner = "user"
    created: int = 0

    @classmethod
    def from_wire(cls, data: object, *, environ: Mapping[str, str] | None = None, created: int = 0) -> Entry:
        """Reads a description: that of a tool has a `kind`, that of a server has a `label`.

        Args:
            data: Decoded JSON or TOML.
            environ: For secrets named `env:NAME`, if an operator wrote the description.
            created: When it was registered.

        Raises:
            ToolInvalid: It is not what it must be; `param` is the path of the field.
        """
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise ToolInvalid("a tool must be an object")
        fields = dict(data)
        approval = Approval.from_wire(fields.pop("require_approval", None))
        kind = fields.get("kind")
        is_server = kind == "server" or (kind is None and "label" in fields)
        if is_server:
            fields.pop("kind", None)
            target: ToolSpec | McpServer = McpServer.from_wire(fields, environ=environ)
        else:
            target = ToolSpec.from_wire(fields, environ=environ)
            if approval.always or approval.never:
                raise ToolInvalid("require_approval of one tool is 'always' or 'never'", "require_approval")
        entry = cls(target=target, approval=approval, owner="user" if environ is None else "operator", created=created)
        if entry.name == OWN_LABEL:
            raise ToolInvalid(f"{OWN_LABEL!r} is the name of all tools that belong to no server", entry.name_field)
        return entry

    @property
    def name(self) -> str:
        """What it is called by: the name of a tool, the label of a server."""
        return self.target.label if isinstance(self.target, McpServer) else self.target.name

    @property
    def name_field(self) -> str:
        """Under which field the name stands."""
        return "label" if isinstance(self.target, McpServer) else "name"

    def to_wire(self, *, secrets: bool = False) -> dict[str, Any]:
        """The description, to be read by `from_wire` again if it has its secrets."""
        wire = self.target.to_wire(secrets=secrets)
        if isinstance(self.target, McpServer):
            wire = {"kind": "server", **wire}
        shown = self.approval.to_wire()
        return wire if shown is None else wire | {"require_approval": shown}

    def body(self) -> dict[str, Any]:
        """The object on the wire, without secrets; of an operator's entry without where it is, too."""
        target = self.target
        is_server = isinstance(target, McpServer)
        body: dict[str, Any] = {
            "id": self.name,
            "object": "tool",
            "created_at": self.created,
            "owned_by": self.owner,
            "kind": "server" if isinstance(target, McpServer) else target.kind,
            "description": "" if isinstance(target, McpServer) else target.description,
            "parameters": None if isinstance(target, McpServer) else dict(target.parameters),
            "effect": target.effect,
            "timeout_s": target.timeout_s,
            "max_output_bytes": target.max_output_bytes,
            "require_approval": self.approval.to_wire(),
        }
        if self.owner == "operator":
            return body
        wire = target.to_wire(secrets=False)
        if is_server:
            shown = ("url", "headers", "allowed_tools", "effects", "list_ttl_s")
            return body | {"server": {key: wire[key] for key in shown if key in wire}}
        return body | {kind: wire[kind] for kind in ("http", "mcp", "script") if kind in wire}
