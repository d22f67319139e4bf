"""Functions that stand in a script for methods of contexts which the sandbox answers in part by itself.

What a script calls on the server costs a fifth of a millisecond and more, and a function of the script's does not cross
to the server at all. So some calls are replaced by those of functions behind the script, which call the server in turn:

    gen = await ctx.generation(max_tokens=9)   ->   gen = await wye_generation(ctx, max_tokens=9)

No line of the script moves. Only calls without positional arguments are replaced, and the functions leave alone what is
no context. Of Python's own names they use `BUILTINS`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

BUILTINS = ("dict", "id", "int", "isinstance", "len", "list", "str", "tuple", "type", "TypeError")
"""What stands around a script calls these `wye_id` and so on, for a script may give the names to something else."""

_TAKEN = frozenset({"Context", "Generation"})
"""Classes of a script's own that have such a name cannot be told from the server's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIn:
    """One such function.

    Attributes:
        method: What it stands for.
        name: Its name; the object whose method it is comes first of its arguments.
        code: Where it is defined; it stands behind the script.
        rest: An expression for what it has not told the server when the script has ended, however that was.
        applies: Whether a call of the method is replaced; told whether the call is awaited at once.
        others: Names of functions of its that stand for further methods, by those; where it stands for none itself
            they do not either.
    """

    method: str
    name: str
    code: str
    applies: Callable[[ast.Call, bool], bool]
    rest: str = ""
    others: Mapping[str, str] = field(default_factory=dict, hash=False)


@lru_cache(maxsize=64)
def with_stand_ins(source: str, stand_ins: Sequence[StandIn]) -> tuple[str, str]:
    """The script as it is run, and an expression for what is to be told of it when it has ended.

    Args:
        source: The script.
        stand_ins: What may be replaced; hashable.
    """
    wanted = [one for one in stand_ins if one.method in source]
    calls = _calls_of(source, wanted) if wanted else []
    if not calls:
        return source, ""
    used = [one for one in stand_ins if any(one is other for _, other, _ in calls)]
    text = _replaced(source, calls) + "".join(one.code for one in used)
    return text, " + ".join(one.rest for one in used if one.rest)


_Call = tuple[ast.Call, StandIn, str]
"""A call, what stands for it, and the name of the function."""


def _calls_of(source: str, wanted: Sequence[StandIn]) -> list[_Call]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the sandbox has its own word for what is wrong with it
    if any(isinstance(node, ast.ClassDef) and node.name in _TAKEN for node in nodes):
        return []
    awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
    plain = [one for one in nodes if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and not one.args]
    found: list[_Call] = []
    for stand_in in wanted:
        names = {stand_in.method: stand_in.name, **stand_in.others}
        mine = [
            (call, stand_in, names[call.func.attr])
            for call in plain
            if isinstance(call.func, ast.Attribute)
            and call.func.attr in names
            and stand_in.applies(call, id(call) in awaited)
        ]
        if any(name == stand_in.name for _, _, name in mine):
            found += mine
    return found


def _replaced(source: str, calls: Sequence[_Call]) -> str:
    data = source.encode("utf-8", "surrogatepass")
    starts = _line_starts(data)
    changes: list[tuple[int, int, bytes]] = []
    for call, _, name in calls:
        function = call.func
        assert isinstance(function, ast.Attribute)
        assert function.end_lineno is not None
        assert function.end_col_offset is not None
        assert function.value.end_lineno is not None
        assert function.value.end_col_offset is not None
        begin = starts[call.lineno - 1] + call.col_offset
        value_end = starts[function.value.end_lineno - 1] + function.value.end_col_offset
        name_end = starts[function.end_lineno - 1] + function.end_col_offset
        dot = data.rindex(b".", begin, name_end)
        opened = data.index(b"(", name_end)
        if b"#" in data[value_end:opened]:
            continue  # which dot is it?
        lines = data[dot:opened].count(b"\n")
        changes.append((begin, begin, f"{name}(".encode()))
        changes.append((dot, opened + 1, b"," + b"\n" * lines + b" "))
    for begin, end, text in sorted(changes, reverse=True):
        data = data[:begin] + text + data[end:]
    return data.decode("utf-8", "surrogatepass")


def _line_starts(data: bytes) -> list[int]:
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts
