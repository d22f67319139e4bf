"""Calls written as Python: `[get_weather(city="Oslo", days=3), get_time()]`. Literals only; nothing is executed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection

from extensions.parsing.held_names import may_be_python
from extensions.parsing.parts import Call

MAX_CHARS = 65_536
"""Longest text that is read as Python."""

MAX_DEPTH = 64
"""Deepest nesting of brackets that is read as Python."""

_INTERESTING = re.compile(r"[\"'\[\](){}]")
_CLOSERS = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}


class PythonExtent:
    """Finds where a bracket that is the first character closes, in text that arrives in pieces.

    Attributes:
        is_too_large: It is too long or too deep to be read.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._num_chars = 0
        self._quote = ""
        self._escapes = False
        self.is_too_large = False

    def feed(self, text: str) -> int | None:
        """Takes more text; returns the position after the closing bracket, or None if it has not come."""
        at = 0
        if self._escapes and text:
            self._escapes, at = False, 1
        while at < len(text):
            found = (_CLOSERS[self._quote] if self._quote else _INTERESTING).search(text, at)
            if found is None:
                break
            at = found.end()
            if self._take(found.group()):
                self._count(at)
                return at
            if self._escapes:
                self._escapes = at == len(text)
                at += 1
        self._count(len(text))
        return None

    def _count(self, num_chars: int) -> None:
        self._num_chars += num_chars
        self.is_too_large = self.is_too_large or self._num_chars > MAX_CHARS

    def _take(self, char: str) -> bool:
        if char == "\\":
            self._escapes = True
        elif char in "\"'":
            self._quote = "" if self._quote else char
        elif char in "[({":
            self._depth += 1
        else:
            self._depth -= 1
        self.is_too_large = self.is_too_large or self._depth > MAX_DEPTH
        return self._depth <= 0


def read_python_calls(text: str, names: Collection[str]) -> list[Call] | None:
    """Reads a list of calls, or one call; None if it is anything else, or calls what is not in `names`."""
    if len(text) > MAX_CHARS or not may_be_python(names, text):
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_call(node, names) for node in nodes] or None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr, names: Collection[str]) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("only calls with named arguments are calls")
    name = ast.unparse(node.func)
    if name not in names:
        raise ValueError("no such tool")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("every argument needs a name")
        arguments[keyword.arg] = ast.literal_eval(_with_json_names(keyword.value))
    return Call(name, json.dumps(arguments, ensure_ascii=False, allow_nan=False))


class _JsonNames(ast.NodeTransformer):
    """Reads `true`, `false` and `null` as what they mean in JSON."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        values = {"true": True, "false": False, "null": None}
        return ast.copy_location(ast.Constant(values[node.id]), node) if node.id in values else node


def _with_json_names(node: ast.expr) -> ast.expr:
    changed: ast.expr = _JsonNames().visit(node)
    return changed
