"""Functions that stand in a script for methods of contexts which the sandbox answers in part by itself.

What a script calls on the server costs a fifth of a millisecond and more, and a function of the script's does not cross
to the server at all. So some calls are replaced by those of functions behind the script, which call the server in turn:

    gen = await ctx.generation(max_tokens=9)   ->   gen = await wye_generation(ctx, max_tokens=9)

No line of the script moves. Only calls without positional arguments are replaced, and the functions leave alone what is
no context.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, kw_only=True, slots=True)
class StandIn:
    """One such function.

    Attributes:
        method: What it stands for.
        name: Its name; the object whose method it is comes first of its arguments.
        code: Where it is defined; it stands behind the script.
        at_end: What is run when `main` has returned.
        applies: Whether a call of the method is replaced; told whether the call is awaited at once.
    """

    method: str
    name: str
    code: str
    applies: Callable[[ast.Call, bool], bool]
    at_end: str = ""


@lru_cache(maxsize=64)
def with_stand_ins(source: str, stand_ins: Sequence[StandIn]) -> tuple[str, str]:
    """The script as it is run, and what is to be run when its `main` has returned.

    Args:
        source: The script.
        stand_ins: What may be replaced; hashable.
    """
    wanted = {one.method: one for one in stand_ins if one.method in source}
    calls = _calls_of(source, wanted) if wanted else []
    if not calls:
        return source, ""
    used = [one for one in stand_ins if any(one is other for _, other in calls)]
    text = _replaced(source, calls) + "".join(one.code for one in used)
    return text, "".join(one.at_end for one in used)


def _calls_of(source: str, wanted: dict[str, StandIn]) -> list[tuple[ast.Call, StandIn]]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # the sandbox has its own word for what is wrong with it
    awaited = {id(node.value) for node in nodes if isinstance(node, ast.Await)}
    found = []
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            stand_in = wanted.get(node.func.attr)
            if stand_in is not None and stand_in.applies(node, id(node) in awaited):
                found.append((node, stand_in))
    return found


def _replaced(source: str, calls: Sequence[tuple[ast.Call, StandIn]]) -> str:
    data = source.encode("utf-8", "surrogatepass")
    starts = _line_starts(data)
    changes: list[tuple[int, int, bytes]] = []
    for call, stand_in in calls:
        function = call.func
        assert isinstance(function, ast.Attribute)
        assert function.end_lineno is not None
        assert function.end_col_offset is not None
        begin = starts[call.lineno - 1] + call.col_offset
        name_end = starts[function.end_lineno - 1] + function.end_col_offset
        dot = data.rindex(b".", begin, name_end)
        opened = data.index(b"(", name_end)
        lines = data[dot:opened].count(b"\n")
        changes.append((begin, begin, f"{stand_in.name}(".encode()))
        changes.append((dot, opened + 1, b"," + b"\n" * lines + b" "))
    for begin, end, text in sorted(changes, reverse=True):
        data = data[:begin] + text + data[end:]
    return data.decode("utf-8", "surrogatepass")


def _line_starts(data: bytes) -> list[int]:
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts
