"""The published types and the table of bindings say the same."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

from extensions.programs.faults import CODES
from extensions.sandbox.bindings import RECORDS, TABLE
from extensions.sandbox.published import stubs_path, stubs_text

TREE = ast.parse(stubs_text())
CLASSES = {node.name: node for node in TREE.body if isinstance(node, ast.ClassDef)}


def bases(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base) for base in node.bases]


def methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Each method; of an overloaded one, the last form."""
    return {one.name: one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def attributes(node: ast.ClassDef) -> list[str]:
    return [one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]


def shown_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[tuple[str, str]]:
    """Names and defaults, keyword-only ones behind a `*`."""
    args = node.args
    given = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(given) - len(args.defaults)) + list(args.defaults)
    found = [(arg.arg, default) for arg, default in zip(given, defaults, strict=True)]
    found += [("*", None)] if args.kwonlyargs else []
    found += [(arg.arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return [(name, "" if default is None else ast.unparse(default)) for name, default in found]


def real_parameters(method: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in inspect.signature(method).parameters.values():
        if one.kind is one.VAR_KEYWORD:
            continue
        if one.kind is one.KEYWORD_ONLY and ("*", "") not in found:
            found.append(("*", ""))
        found.append((one.name, "" if one.default is one.empty else repr(one.default)))
    return found


def test_every_class_is_a_handle_a_record_or_a_form() -> None:
    handles = {exposed.name for exposed in TABLE.values()}
    records = {record.__name__ for record in RECORDS}
    forms = {name for name, node in CLASSES.items() if bases(node) == ["TypedDict"]}
    assert set(CLASSES) == handles | records | forms


@pytest.mark.parametrize("cls", TABLE, ids=lambda cls: TABLE[cls].name)
def test_a_handle_has_the_methods_and_attributes_of_its_types(cls: type) -> None:
    exposed, node = TABLE[cls], CLASSES[TABLE[cls].name]
    assert exposed.inner <= exposed.methods
    assert set(methods(node)) == exposed.methods - exposed.inner
    assert set(attributes(node)) == set(exposed.attributes) | exposed.live
    for name, shown in methods(node).items():
        real = getattr(cls, name)
        assert isinstance(shown, ast.AsyncFunctionDef) == inspect.iscoroutinefunction(real), name
        known = dict(real_parameters(real))
        for form, default in shown_parameters(shown):
            assert form in known, f"{name} has no parameter {form}"
            # Overloads show a parameter without the default that another of them has.
            assert default == known[form] or (not default and name in ("fork", "prefix", "score")), f"{name}: {form}"
        assert len(known) == len(shown_parameters(shown)), name


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_has_the_fields_of_its_types(record: Any) -> None:
    node = CLASSES[record.__name__]
    assert bases(node) == ["NamedTuple"]
    assert tuple(attributes(node)) == record._fields


def test_every_class_and_method_is_described() -> None:
    for node in CLASSES.values():
        assert ast.get_docstring(node), node.name
        for name, method in methods(node).items():
            assert ast.get_docstring(method), f"{node.name}.{name}"


def test_every_code_of_an_error_is_described() -> None:
    described = ast.get_docstring(TREE) or ""
    for code, kind in CODES.items():
        line = next(line for line in described.splitlines() if f"`{code}`" in line)
        assert f"`{kind.__name__}`" in line


def test_the_types_lie_where_a_checker_finds_them() -> None:
    assert stubs_path().name == "stubs.pyi"
    assert stubs_path().read_text(encoding="utf-8") == stubs_text()
