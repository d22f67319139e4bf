"""Adapters as expressions: what they are given, and their check for one site. Plain, so that it needs no library.

Letters: K inputs, N outputs of a site, R columns of a matrix.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine.programs.binding import GREATEST_FLOAT, BoundProgram, check_names, check_purpose
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.graph import Graph, Node
from engine.programs.lowering import lower
from engine.programs.purposes import ADAPTER
from engine.programs.syntax import parse
from engine.programs.types import Kind, Type
from engine.request import Matrix

MAX_NUMBERS = 2**18
"""In all lists and matrices that one expression is given."""

MAX_VALUES = 64
"""Of one expression, loops unrolled: each has a number for every row and place."""

LEAST_WORK = 2**17
"""Multiplications that an expression may have for a row, where the site's own product has fewer."""

_VALUE_WORK = 8
"""What a number takes that is no product's, in multiplications of a product."""

PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"lora": ("a", "b"), "dora": ("a", "b", "gain", "bias"), "ia3": ()}
)
"""What an expression can take from a loaded adapter of each kind, as `name.a`: the matrices of (x @ a) @ b, and of a
DoRA the gain of each output and the model's bias, to which that does not apply (0 where there is none)."""


def read_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as they travel: numbers, lists of numbers, matrices, and names of adapters' parts.

    Raises:
        ProgramMisused: One is none of these, or all together are too large.
    """
    found = {name: _read(name, value) for name, value in values.items()}
    size = sum(len(one) if isinstance(one, list) else len(one.values) // 4 for one in found.values() if _is_large(one))
    if size > MAX_NUMBERS:
        raise ProgramMisused(f"its lists have {size} numbers together; {MAX_NUMBERS} are allowed", "parameters")
    return found


def bind_adapter(source: str, values: Mapping[str, Any], num_inputs: int, num_outputs: int) -> BoundProgram:
    """Checks an expression for a site.

    Args:
        source: The program.
        values: Of its parameters: what `read_values` gives, or vectors and matrices that have a `shape`.
        num_inputs: K.
        num_outputs: N.

    Raises:
        ProgramInvalid: It is no expression, or its matrices do not fit.
        ProgramMisused: A parameter is missing or unknown.
    """
    parsed = parse(source)
    check_purpose(parsed.function, ADAPTER)
    check_names(parsed, values)
    given = {name: values.get(name, parsed.defaults.get(name)) for name in parsed.parameters}
    types = tuple((name, _type(value)) for name, value in given.items())
    sites = (("x", Type(Kind.FLOAT, num_inputs)), ("y", Type(Kind.FLOAT, num_outputs)))
    graph = lower(source, types, sites)
    if len(graph.nodes) > MAX_VALUES:
        raise ProgramInvalid(f"{len(graph.nodes)} values, loops unrolled; {MAX_VALUES} are allowed", 1, 1)
    work, most = sum(_work(graph, node) for node in graph.nodes), max(num_inputs * num_outputs, LEAST_WORK)
    if work > most:
        raise ProgramInvalid(f"{work} multiplications for a row, or what takes as long; {most} are allowed", 1, 1)
    return BoundProgram(parsed.digest, ADAPTER, types, graph, given)


def _work(graph: Graph, node: Node) -> int:
    """What a node costs for one row, in multiplications of a product."""
    if node.op == "matmul":
        right = graph.nodes[node.args[1]].type
        return (right.rows or 1) * _width(right)
    return 0 if node.op == "parameter" else _VALUE_WORK * _width(node.type)


def _width(kind: Type) -> int:
    return kind.axis if isinstance(kind.axis, int) else 1


def _type(value: Any) -> Type:
    match value:
        case bool():
            return Type(Kind.BOOL)
        case int():
            return Type(Kind.INT)
        case float():
            return Type(Kind.FLOAT)
        case list():
            return Type(Kind.FLOAT, len(value))
        case Matrix(rows, columns):
            return Type(Kind.FLOAT, columns, rows)
    *rows, columns = value.shape
    return Type(Kind.FLOAT, columns, *rows)


def _read(name: str, value: Any) -> Any:
    match value:
        case bool() | str():
            return value
        case int() if -(2**63) <= value < 2**63:
            return value
        case float() if abs(value) <= GREATEST_FLOAT:
            return value
        case list() | tuple() if value and all(isinstance(one, list | tuple) for one in value):
            return _read_matrix(name, value)
        case list() | tuple() if value and all(_is_number(one) for one in value):
            return [float(one) for one in value]
    raise ProgramMisused(
        f"parameter `{name}` must be a finite number, a list of numbers, a list of such lists, all as long, or the "
        f"name of an adapter's part, {' or '.join(f'name.{part}' for part in PARTS['dora'])}",
        name,
    )


def _read_matrix(name: str, rows: Sequence[Sequence[Any]]) -> Matrix:
    columns = len(rows[0])
    if not columns or any(len(row) != columns for row in rows):
        raise ProgramMisused(f"the rows of parameter `{name}` must be equally long, and not empty", name)
    if len(rows) * columns > MAX_NUMBERS:
        raise ProgramMisused(f"parameter `{name}` has {len(rows) * columns} numbers; {MAX_NUMBERS} are allowed", name)
    if not all(_is_number(one) for row in rows for one in row):
        raise ProgramMisused(f"parameter `{name}` must have finite numbers", name)
    return Matrix(len(rows), columns, array("f", (one for row in rows for one in row)).tobytes())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= GREATEST_FLOAT


def _is_large(value: Any) -> bool:
    return isinstance(value, list | Matrix)
