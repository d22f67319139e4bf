"""What an MCP server is: where it speaks, and what of it may be used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from extensions.tools.catalog import Effect
from extensions.tools.errors import ToolInvalid
from extensions.tools.urls import check_url, placeholders
from extensions.tools.wire import Checked, check_bounds, check_headers, convert, to_wire

_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRET = ("headers", "env")


class McpServer(Checked, frozen=True, kw_only=True):
    """A server that speaks MCP.

    Attributes:
        label: What it is called by.
        url: Of its streamable HTTP endpoint; empty for a program.
        command: The program that speaks MCP over its standard streams, with its arguments; only operators may.
        headers: Sent along to `url`.
        env: Environment of the program; it sees nothing of the server's own but `PATH` and `HOME`.
        allowed_tools: Only these of its tools are there; all if left out.
        effects: What its tools do, by name.
        effect: What those do that are not named; a server's own claims are not believed.
        timeout_s: Longest that a call may take.
        max_output_bytes: Most that is read of an answer.
        list_ttl_s: How long its list of tools is remembered.
        is_trusted: An operator registered it: it may be a program, and plain HTTP on this machine.
    """

    label: str
    url: str = ""
    command: tuple[str, ...] = ()
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    env: dict[str, str] = msgspec.field(default_factory=dict)
    allowed_tools: tuple[str, ...] | None = None
    effects: dict[str, Effect] = msgspec.field(default_factory=dict)
    effect: Effect = "once"
    timeout_s: float = 30.0
    max_output_bytes: int = 65_536
    list_ttl_s: float = 300.0
    is_trusted: bool = False

    def __repr__(self) -> str:
        return f"McpServer(label={self.label!r}, url={self.url!r}, command={self.command[:1]!r})"

    @classmethod
    def from_wire(cls, data: object, *, environ: Mapping[str, str] | None = None) -> McpServer:
        """Reads a description; see `ToolSpec.from_wire`.

        Raises:
            ToolInvalid: It is not what it must be.
        """
        server = convert(data, cls, environ, _SECRET)
        server.check("")
        return server

    def to_wire(self, *, secrets: bool = False) -> dict[str, Any]:
        """The same as plain data, to be read again only with its secrets."""
        return to_wire(self, _SECRET, secrets=secrets)

    def check(self, at: str) -> None:
        """Checks what types do not.

        Args:
            at: Path of this description in its surroundings, with a dot at its end.

        Raises:
            ToolInvalid: A field is not what it must be.
        """
        if not _LABEL.fullmatch(self.label):
            raise ToolInvalid(f"{at}label must be 1 to 64 letters, digits, '_', '.' or '-'", f"{at}label")
        if bool(self.url) == bool(self.command):
            raise ToolInvalid(f"{at}url or {at}command must say where the server is, and only one of them", f"{at}url")
        if self.command and not self.is_trusted:
            raise ToolInvalid(f"{at}command: only the operator's own file may start programs", f"{at}command")
        if self.command and self.headers:
            raise ToolInvalid(f"{at}headers are for servers with a url", f"{at}headers")
        if self.env and not self.command:
            raise ToolInvalid(f"{at}env is for servers with a command", f"{at}env")
        if self.url:
            check_url(self.url, f"{at}url", is_trusted=self.is_trusted)
            if placeholders(self.url):
                raise ToolInvalid(f"{at}url of an MCP server has no placeholders", f"{at}url")
        check_headers(self.headers, f"{at}headers")
        check_bounds(self.timeout_s, self.max_output_bytes, at)
        if not 0 <= self.list_ttl_s <= 86_400:
            raise ToolInvalid(f"{at}list_ttl_s must be from 0 to 86400", f"{at}list_ttl_s")
