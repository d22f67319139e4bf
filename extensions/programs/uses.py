"""What a script takes from Python's own library, read from its text: modules, what is in them, built-in functions."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

IMPLIED = ("asyncio", "json", "math", "re")
"""Modules that a script knows without an import."""

_ALL = frozenset({"Exception", "BaseException"})
_CATCHES = {
    "module": _ALL | {"ImportError", "ModuleNotFoundError"},
    "member": _ALL | {"ImportError", "AttributeError", "RuntimeError", "OSError", "PermissionError"},
    "builtin": _ALL | {"NameError", "OSError", "PermissionError"},
}
_NOT_RUN = ("extensions.sandbox.stubs", "__future__", "*")
_BUILTINS = frozenset(name for name in dir(builtins) if not name.startswith("_") or name == "__import__")


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """One place of a script that needs something.

    Attributes:
        module: That it is in; empty for a built-in function.
        name: In the module; empty for the module itself.
        line: From 1.
        column: From 1.
        end_line: Where the place ends.
        end_column: Where the place ends.
        is_guarded: The script catches that it is not there.
    """

    module: str
    name: str
    line: int
    column: int
    end_line: int
    end_column: int
    is_guarded: bool


def read_uses(tree: ast.Module) -> list[Use]:
    """All uses, in no order. A name that the script binds itself, anywhere, is taken to be its own."""
    reader = _Reader(_modules_of(tree))
    reader.read(tree.body)
    return reader.uses


def _modules_of(tree: ast.Module) -> dict[str, str]:
    """Names that stand for a module in the whole script, and "" for names that are the script's own."""
    found: defaultdict[str, set[str]] = defaultdict(set, {name: {name} for name in IMPLIED})
    for node in ast.walk(tree):
        for name, module in _bound_by(node):
            found[name].add(module)
    return {name: modules.pop() if len(modules) == 1 else "" for name, modules in found.items()}


def _bound_by(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
        case ast.ImportFrom(names=names):
            for alias in names:
                yield alias.asname or alias.name, ""
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name, ""
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, ""
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name, ""
        case ast.MatchMapping(rest=str(name)):
            yield name, ""


class _Reader:
    """Goes through a script."""

    def __init__(self, modules: dict[str, str]) -> None:
        self.uses: list[Use] = []
        self._modules = modules
        self._caught: frozenset[str] = frozenset()

    def read(self, nodes: Sequence[ast.AST]) -> None:
        """Reads statements or expressions, in a list of its own: scripts may be nested deeply."""
        todo: list[tuple[ast.AST, frozenset[str]]] = [(node, self._caught) for node in nodes]
        while todo:
            node, self._caught = todo.pop()
            self._take(node)
            todo += [(child, caught | self._caught) for child, caught in _below(node)]

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self._note(alias, "module", alias.name)
            case ast.ImportFrom(module=str(module), level=0, names=names) if module not in _NOT_RUN:
                self._note(node, "module", module)
                for alias in names:
                    if alias.name not in _NOT_RUN:
                        self._note(alias, "member", module, alias.name)
            case ast.Attribute(value=value, attr=name, ctx=ast.Load()):
                if module := self._module(value):
                    self._note(node, "member", module, name)
            case ast.Name(id=name, ctx=ast.Load()) if name in _BUILTINS and name not in self._modules:
                self._note(node, "builtin", "", name)

    def _module(self, node: ast.AST) -> str:
        match node:
            case ast.Name(id=name):
                return self._modules.get(name, "")
            case ast.Attribute(value=ast.Name(id=name), attr="path") if self._modules.get(name) == "os":
                return "os.path"
        return ""

    def _note(self, node: ast.alias | ast.expr | ast.stmt, kind: str, module: str, name: str = "") -> None:
        self.uses.append(
            Use(
                module=module,
                name=name,
                line=node.lineno,
                column=node.col_offset + 1,
                end_line=node.end_lineno or node.lineno,
                end_column=(node.end_col_offset or node.col_offset) + 1,
                is_guarded=bool(self._caught & _CATCHES[kind]),
            )
        )


def _below(node: ast.AST) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """What is run below a node, and what is caught around that: no types, and nothing for type checkers alone."""
    nothing: frozenset[str] = frozenset()
    if isinstance(node, ast.If) and _is_for_checkers(node.test):
        yield from ((child, nothing) for child in node.orelse)
        return
    caught = nothing
    if isinstance(node, ast.Try | ast.TryStar):
        caught = frozenset(name for handler in node.handlers for name in _caught_by(handler))
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child, caught if field == "body" else nothing


def _is_for_checkers(test: ast.expr) -> bool:
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def _caught_by(handler: ast.ExceptHandler) -> list[str]:
    if handler.type is None:
        return ["BaseException"]
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [kind.id for kind in kinds if isinstance(kind, ast.Name)]
