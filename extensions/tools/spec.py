"""What a tool is: its name for models, its schema, what it does to the world, and where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from extensions.programs.arguments import schema_error
from extensions.tools.catalog import Effect, ToolInfo, ToolKind
from extensions.tools.errors import ToolInvalid
from extensions.tools.servers import McpServer
from extensions.tools.urls import check_url, placeholders
from extensions.tools.wire import Checked, check_bounds, check_headers, convert, to_wire

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DESCRIPTION = 4096
_SECRET = ("http.headers", "mcp.server.headers", "mcp.server.env")


class HttpTarget(Checked, frozen=True, kw_only=True):
    """JSON in, JSON or text out, over HTTP.

    Attributes:
        url: Where; `{name}` in its path or query is the argument of that name, escaped.
        method: The other arguments are the query of a GET or DELETE, and else the JSON object that is sent.
        headers: Sent along, seen by nobody else.
    """

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "POST"
    headers: dict[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"HttpTarget(method={self.method!r}, url={self.url!r})"


class McpTarget(Checked, frozen=True, kw_only=True):
    """A tool of an MCP server.

    Attributes:
        server: Whose.
        tool: Its name there.
    """

    server: McpServer
    tool: str


class ScriptTarget(Checked, frozen=True, kw_only=True):
    """A program of the sandbox; the arguments are its `request.args`, what `main` returns is the answer.

    Attributes:
        source: The program.
    """

    source: str


class ToolSpec(Checked, frozen=True, kw_only=True):
    """A tool.

    Attributes:
        name: What models and programs call it by.
        description: For models and people.
        parameters: JSON Schema of its arguments.
        kind: Which of the next three is there.
        http: See `HttpTarget`.
        mcp: See `McpTarget`.
        script: See `ScriptTarget`.
        effect: What a call does to the world.
        timeout_s: Longest that a call may take.
        max_output_bytes: Most that is read of an answer; the rest is cut off.
        max_parallel: Calls of it at once in one process; more wait, inside their time.
        is_trusted: An operator registered it.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    kind: ToolKind
    http: HttpTarget | None = None
    mcp: McpTarget | None = None
    script: ScriptTarget | None = None
    effect: Effect = "once"
    timeout_s: float = 30.0
    max_output_bytes: int = 65_536
    max_parallel: int = 16
    is_trusted: bool = False

    @classmethod
    def from_wire(cls, data: object, *, environ: Mapping[str, str] | None = None) -> ToolSpec:
        """Reads a description.

        Args:
            data: Decoded JSON or TOML.
            environ: Of the server, if an operator wrote it: then the tool is trusted, and a secret may be
                `env:NAME`, which is read here. A tenant's description has none.

        Raises:
            ToolInvalid: It is not what it must be; `param` is the path of the field.
        """
        spec = convert(data, cls, environ, _SECRET)
        if spec.mcp is not None and spec.is_trusted:
            server = msgspec.structs.replace(spec.mcp.server, is_trusted=True)
            spec = msgspec.structs.replace(spec, mcp=msgspec.structs.replace(spec.mcp, server=server))
        spec._check()
        return spec

    def to_wire(self, *, secrets: bool = False) -> dict[str, Any]:
        """The same as plain data, to be read again only with its secrets."""
        return to_wire(self, _SECRET, secrets=secrets)

    def info(self) -> ToolInfo:
        """What callers see of it."""
        return ToolInfo(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            effect=self.effect,
            kind=self.kind,
        )

    def _check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ToolInvalid("name must be 1 to 64 letters, digits, '_' or '-'", "name")
        if len(self.description) > _MAX_DESCRIPTION:
            raise ToolInvalid(f"description must have at most {_MAX_DESCRIPTION} characters", "description")
        if (problem := schema_error(self.parameters)) is not None:
            raise ToolInvalid(f"parameters is no JSON Schema of an object: {problem}", "parameters")
        for kind in ("http", "mcp", "script"):
            if (getattr(self, kind) is not None) != (kind == self.kind):
                raise ToolInvalid(f"a tool of kind {self.kind!r} needs {self.kind!r} and no other target", kind)
        check_bounds(self.timeout_s, self.max_output_bytes, "")
        if not 1 <= self.max_parallel <= 1024:
            raise ToolInvalid("max_parallel must be from 1 to 1024", "max_parallel")
        if self.http is not None:
            self._check_http(self.http)
        if self.mcp is not None:
            self.mcp.server.check("mcp.server.")
        if self.script is not None and not self.script.source.strip():
            raise ToolInvalid("script.source is empty", "script.source")

    def _check_http(self, http: HttpTarget) -> None:
        check_url(http.url, "http.url", is_trusted=self.is_trusted)
        check_headers(http.headers, "http.headers")
        known = self.parameters.get("properties", {})
        needed = self.parameters.get("required", [])
        for name in placeholders(http.url):
            if name not in known or name not in needed:
                raise ToolInvalid(
                    f"http.url has a place for {name!r}, which must be a required property of parameters", "http.url"
                )
