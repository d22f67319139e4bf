"""What a script says of itself, read without running it: its docstring, `EXTENSION`, and its `main`."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from extensions.errors import Diagnostic
from extensions.programs.arguments import schema_error
from extensions.programs.capabilities import Need, read_needs
from extensions.programs.program import EXT_API
from extensions.programs.uses import Use, read_uses

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_VERSION = re.compile(
    r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z.-]+)?"
)
_KEYS = ("name", "version", "description", "params", "capabilities", "ext_api")
_PARAMETERS = (("request", "Request"), ("lm", "LM"))
_SHAPE = "a program needs 'async def main(request, lm)' at its top level"


@dataclass(frozen=True, slots=True)
class Insertion:
    """Text put into a line of the script for its check.

    Attributes:
        line: From 1.
        column: From 0, in characters.
        text: What is put there.
    """

    line: int
    column: int
    text: str


@dataclass(kw_only=True, slots=True)
class Header:
    """What was read.

    Attributes:
        fields: `EXTENSION`, or nothing.
        description: First paragraph of the docstring, or the header's own.
        needs: Capabilities that it names.
        annotations: Types to write beside the parameters of `main` that have none.
        uses: What it takes from Python's library.
        diagnostics: What is wrong with it.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    description: str = ""
    needs: list[Need] = field(default_factory=list)
    annotations: list[Insertion] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)


def read_header(source: str) -> Header:
    """Reads a script. Takes about 0.3 ms a kilobyte."""
    header = Header()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except SyntaxError as error:
        line, column = error.lineno or 1, max(error.offset or 1, 1)
        header.diagnostics.append(Diagnostic(line=line, column=column, message=error.msg, rule="invalid-syntax"))
        return header
    except (ValueError, RecursionError, MemoryError) as error:
        message = f"the program cannot be parsed: {error}"
        header.diagnostics.append(Diagnostic(line=1, column=1, message=message, rule="invalid-syntax"))
        return header
    header.description = (ast.get_docstring(tree) or "").split("\n\n")[0].strip()
    if not source.isascii():
        _count_characters(tree, source.split("\n"))
    _read_extension(tree, header)
    _read_main(tree, header)
    header.uses = read_uses(tree)
    return header


def _count_characters(tree: ast.Module, lines: list[str]) -> None:
    """Has columns count characters, where the parser counts bytes of UTF-8."""
    encoded = [line.encode() for line in lines]
    for node in ast.walk(tree):
        for row, column in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
            line, at = getattr(node, row, None), getattr(node, column, None)
            if line is not None and at is not None and line <= len(encoded):
                setattr(node, column, len(encoded[line - 1][:at].decode(errors="ignore")))


def _read_extension(tree: ast.Module, header: Header) -> None:
    found = [node for node in tree.body if _assigns_extension(node)]
    if not found:
        return
    if len(found) > 1:
        header.diagnostics.append(_problem(found[1], "EXTENSION is assigned more than once"))
    value = found[0].value  # type: ignore[attr-defined]
    try:
        fields = ast.literal_eval(value)
    except (ValueError, TypeError, RecursionError, MemoryError):
        header.diagnostics.append(_problem(value, "EXTENSION must be a literal: it is read without running anything"))
        return
    if not isinstance(fields, dict):
        header.diagnostics.append(_problem(value, "EXTENSION must be a dict"))
        return
    places = {ast.literal_eval(key): item for key, item in zip(value.keys, value.values, strict=True) if key}
    for key, message in _wrong_fields(fields):
        header.diagnostics.append(_problem(places.get(key, value), message))
    if "capabilities" in fields:
        header.needs, wrong = read_needs(places["capabilities"])
        header.diagnostics += wrong
    header.fields = fields
    header.description = fields.get("description") or header.description


def _assigns_extension(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(one, ast.Name) and one.id == "EXTENSION" for one in node.targets)
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.target.id == "EXTENSION" and node.value is not None
    return False


def _wrong_fields(fields: Mapping[Any, Any]) -> list[tuple[Any, str]]:
    wrong = [(key, f"EXTENSION has no key {key!r}; keys are {', '.join(_KEYS)}") for key in fields if key not in _KEYS]
    name, version = fields.get("name"), fields.get("version")
    if name is None:
        wrong.append((None, "EXTENSION needs a 'name'"))
    elif not isinstance(name, str) or not _NAME.fullmatch(name):
        wrong.append(("name", "the name must be lower-case letters, digits and underscores, at most 64"))
    if version is not None and not (isinstance(version, str) and _VERSION.fullmatch(version)):
        wrong.append(("version", "the version must be a semantic version such as '1.0.0'"))
    if not isinstance(fields.get("description", ""), str):
        wrong.append(("description", "the description must be text"))
    if "params" in fields and (problem := schema_error(fields["params"])) is not None:
        wrong.append(("params", f"params is no JSON Schema of an object: {problem}"))
    ext_api = fields.get("ext_api", EXT_API)
    if isinstance(ext_api, bool) or ext_api != EXT_API:
        wrong.append(("ext_api", f"this server speaks ext_api {EXT_API}, the program asks for {ext_api!r}"))
    return wrong


def _read_main(tree: ast.Module, header: Header) -> None:
    mains = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == "main"
    ]
    if not mains:
        header.diagnostics.append(Diagnostic(line=1, column=1, message=_SHAPE))
        return
    main = mains[-1]
    if not isinstance(main, ast.AsyncFunctionDef):
        header.diagnostics.append(_problem(main, f"main must be an async function: {_SHAPE}"))
        return
    args = main.args
    given = [*args.posonlyargs, *args.args]
    needed = len(given) - len(args.defaults)
    keywords_missing = any(default is None for default in args.kw_defaults)
    if needed > 2 or keywords_missing or (len(given) < 2 and args.vararg is None):
        header.diagnostics.append(_problem(main, f"main must take the two arguments request and lm: {_SHAPE}"))
        return
    for arg, (_, type_name) in zip(given, _PARAMETERS, strict=False):
        if arg.annotation is None and arg.end_lineno is not None and arg.end_col_offset is not None:
            header.annotations.append(Insertion(arg.end_lineno, arg.end_col_offset, f": {type_name}"))


def _problem(node: ast.AST, message: str) -> Diagnostic:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    end_line, end_column = getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0) + 1
    return Diagnostic(line=line, column=column, end_line=end_line, end_column=end_column, message=message)
