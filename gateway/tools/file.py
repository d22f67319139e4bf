"""The operator's tools: a JSON or TOML file, read and checked whole at the start.

    {"tools": [{"name": "weather", "kind": "http", "http": {"url": "https://…"}, …}],
     "servers": [{"label": "docs", "url": "https://…/mcp", "headers": {"Authorization": "env:DOCS_TOKEN"}}]}

In TOML these are `[[tools]]` and `[[servers]]`. A secret is never in the file: it is named, `env:NAME`. Headers and
variables whose names tell that they are secret must be named so.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extensions.tools.errors import ToolInvalid
from gateway.tools.entries import Entry

MAX_FILE_BYTES = 16 * 2**20
"""A larger file is no list of tools."""

_IS_SECRET = re.compile(r"authorization|cookie|secret|password|token|api[-_]?key", re.IGNORECASE)


class ToolsFileError(Exception):
    """The file cannot be used; the text says where and why."""


def load_tools(path: Path, environ: Mapping[str, str]) -> dict[str, Entry]:
    """Reads the operator's file.

    Args:
        path: A JSON file, or a TOML file if its name ends in `.toml`.
        environ: Where `env:NAME` is looked up.

    Returns:
        Tools and servers by name.

    Raises:
        ToolsFileError: It cannot be read, or something in it is wrong.
    """
    found: dict[str, Entry] = {}
    for at, description in _descriptions(path):
        _check_secrets(path, at, description)
        try:
            entry = Entry.from_wire(description, environ=environ)
        except ToolInvalid as error:
            where = f"{at}.{error.param}" if error.param else at
            message = error.message.removeprefix(error.param or "").lstrip(": ")
            raise ToolsFileError(f"{path}: {where}: {message}") from None
        if entry.name in found:
            raise ToolsFileError(f"{path}: {at}: there are two of the name {entry.name!r}")
        found[entry.name] = entry
    return found


def _descriptions(path: Path) -> list[tuple[str, Any]]:
    content = _content(path)
    if not isinstance(content, dict):
        raise ToolsFileError(f"{path}: it must be an object with 'tools' and 'servers'")
    if unknown := content.keys() - {"tools", "servers"}:
        raise ToolsFileError(f"{path}: {min(unknown)!r} is not known; there are 'tools' and 'servers'")
    found: list[tuple[str, Any]] = []
    for key in ("tools", "servers"):
        listed = content.get(key, [])
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            raise ToolsFileError(f"{path}: '{key}' must be a list of objects")
        # A server may be told by its key alone: there its label is what it has in place of a kind.
        found += [(f"{key}[{number}]", one if key == "tools" else _server(one)) for number, one in enumerate(listed)]
    return found


def _check_secrets(path: Path, at: str, description: dict[str, Any]) -> None:
    """Refuses secrets that stand in the file themselves."""
    for place in ("headers", "env", "http.headers", "mcp.server.headers", "mcp.server.env"):
        found: Any = description
        for part in place.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        for name, value in found.items() if isinstance(found, dict) else ():
            if _IS_SECRET.search(name) and isinstance(value, str) and value and not value.startswith("env:"):
                message = "a secret does not belong into a file: put it into a variable, and write env:NAME"
                raise ToolsFileError(f"{path}: {at}.{place}.{name}: {message}")


def _server(description: dict[str, Any]) -> dict[str, Any]:
    return description if "kind" in description else {"kind": "server", **description}


def _content(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ToolsFileError(f"{path}: it is larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text("utf-8")
    except UnicodeDecodeError:
        raise ToolsFileError(f"{path}: it is no UTF-8 text") from None
    except OSError as error:
        raise ToolsFileError(f"{path}: {error.strerror or error}") from None
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ToolsFileError(f"{path}: it is no {kind}: {error}") from None
