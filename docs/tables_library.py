"""The table of programs that come with the server, read from the programs themselves."""

from __future__ import annotations

import ast
import re
from typing import Any

from docs.markdown import code, table
from extensions.library import shipped_names, shipped_source

_PAPER = re.compile(r"arXiv (\d{4}\.\d{4,5})")


def library_table() -> str:
    """Name, what it does, what it follows, and its arguments."""
    rows = [_row(name, ast.parse(shipped_source(name))) for name in shipped_names()]
    return table(["program", "what it does", "how, and after whom", "arguments"], rows)


def _row(name: str, tree: ast.Module) -> tuple[str, str, str, str]:
    header = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    fields: dict[str, Any] = ast.literal_eval(header)
    about, _, how = (ast.get_docstring(tree) or "").partition("\n\n")
    linked = _PAPER.sub(r"[arXiv \1](https://arxiv.org/abs/\1)", " ".join(how.split()))
    title = code(f"{name}@{fields['version']}")
    return title, " ".join(about.split()), linked, _arguments(fields.get("params", {}))


def _arguments(params: dict[str, Any]) -> str:
    required = params.get("required", [])
    shown = []
    for name, schema in params.get("properties", {}).items():
        default = schema.get("default")
        shown.append(code(name if name in required or default is None else f"{name}={default}"))
    return ", ".join(shown)
