"""Secrets of a tool, taken out of whatever comes back from it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar

from extensions.tools.catalog import ToolResult
from extensions.tools.errors import ToolError
from extensions.tools.servers import McpServer
from extensions.tools.spec import ToolSpec
from extensions.tools.wire import HIDDEN

_MIN_CHARS = 6
_SCHEMES = re.compile(r"(?i:bearer|basic|token|apikey)\s+")

E = TypeVar("E", bound=ToolError)


class Redaction:
    """Replaces secrets by their values: a tool may say again what it was sent.

    Args:
        secrets: What nobody is to see.
    """

    def __init__(self, secrets: set[str]) -> None:
        found = {one for one in secrets if len(one) >= _MIN_CHARS}
        found |= {rest for one in secrets if len(rest := _SCHEMES.sub("", one, count=1)) >= _MIN_CHARS}
        longest_first = sorted(found, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def of(cls, described: ToolSpec | McpServer) -> Redaction:
        """For what came of a tool or a server."""
        secrets: set[str] = set()
        server = described if isinstance(described, McpServer) else None
        if isinstance(described, ToolSpec):
            secrets |= set(described.http.headers.values()) if described.http is not None else set()
            server = described.mcp.server if described.mcp is not None else None
        if server is not None:
            secrets |= {*server.headers.values(), *server.env.values()}
        return cls(secrets)

    def of_result(self, result: ToolResult) -> ToolResult:
        """A result without them."""
        if self._pattern is None:
            return result
        return replace(result, text=self._of_text(result.text), json=self._of_json(result.json))

    def of_error(self, error: E) -> E:
        """An error without them; nothing else of it is kept that could hold one."""
        error.message = self._of_text(error.message)
        error.args = (error.message,)
        return error

    def _of_text(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)

    def _of_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._of_text(value)
        if isinstance(value, list):
            return [self._of_json(one) for one in value]
        if isinstance(value, dict):
            return {self._of_text(key): self._of_json(one) for key, one in value.items()}
        return value
