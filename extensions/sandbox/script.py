"""What is put around a script, and how its lines are counted back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pydantic_monty import Frame

from extensions.errors import ScriptFrame
from extensions.sandbox.guessing import GUESSING
from extensions.sandbox.stand_ins import BUILTINS, with_stand_ins
from extensions.sandbox.stepping import STEPPING

CHECK_ONLY = "wye_check_only"
"""A function that types know and that does not exist: a check ends there, before any line of the script runs."""

_IMPORTS = "import asyncio, json, math, re"
_DUMPS = "wye_dumps"
_RESULT = "wye_result"
_LEAVE = "wye_leave"
_PLAIN = "wye_plain"
_BUILTINS = f"{', '.join(f'wye_{name}' for name in BUILTINS)} = {', '.join(BUILTINS)}"
_LEAVING = f"""
def {_PLAIN}(value):
    if wye_isinstance(value, wye_tuple) or wye_isinstance(value, wye_list):
        return [{_PLAIN}(one) for one in value]
    return {{key: {_PLAIN}(one) for key, one in value.items()}} if wye_isinstance(value, wye_dict) else value

def {_LEAVE}(value):
    try:
        return {_DUMPS}(value)
    except wye_TypeError:
        pass
    try:
        return {_DUMPS}({_PLAIN}(value))
    except wye_TypeError as error:
        raise wye_TypeError("main returned what is no JSON: " + wye_str(error))
"""
"""Behind a script. The sandbox's own JSON knows no tuples with names, such as `Usage`: they become lists."""
NUM_LINES_BEFORE = 1

_TYPES_IMPORT = re.compile(
    r"^([ \t]*)from[ \t]+extensions\.sandbox\.stubs[ \t]+import[ \t]*(\([^()]*\)|[^\n(]*)$", re.MULTILINE
)


def to_check(source: str) -> str:
    """The script behind a line that ends the run."""
    return f"{_IMPORTS}; {CHECK_ONLY}()\n{_without_types(source)}"


class Runnable(NamedTuple):
    """A script as it is run.

    Attributes:
        code: Runs it. Its last value is what `main` returned, as JSON; in a list with the value of `rest`, if that is
            not empty.
        rest: An expression for what the server is to be told of it when it has ended, if it raised.
    """

    code: str
    rest: str


def to_run(source: str, exports_as: str = "", *, is_journaled: bool = False) -> Runnable:
    """The script, then a call of its `main`, whose result leaves as JSON.

    Args:
        source: The script.
        exports_as: Name under which a context that `main` returns is exported: its id is the result then.
        is_journaled: The server is to be asked for everything that the script is told, so that it can be told again.
    """
    stand_ins = (GUESSING,) if is_journaled else (GUESSING, STEPPING)
    text, rest = with_stand_ins(_without_types(source), stand_ins)
    export = ""
    if exports_as:
        export = (
            f"if str(type({_RESULT})) == \"<class 'Context'>\":\n"
            f"    {_RESULT} = await {_RESULT}.export({exports_as!r})\n"
        )
    leaving = f"[{_LEAVE}({_RESULT}), {rest}]" if rest else f"{_LEAVE}({_RESULT})"
    call = f"{_RESULT} = await main(request, lm)\n{export}{leaving}"
    code = f"{_IMPORTS}; from json import dumps as {_DUMPS}; {_BUILTINS}\n{text}\n{_LEAVING}{call}"
    return Runnable(code, rest)


def _without_types(source: str) -> str:
    """Leaves out the import that names the types to editors: a script knows them without it."""
    return _TYPES_IMPORT.sub(lambda match: match[1] + "pass" + "\n" * match[0].count("\n"), source)


def frames_of(traceback: Iterable[Frame], source: str) -> list[ScriptFrame]:
    """The lines of a traceback that are the script's own, as they were written: not all are run as they were."""
    lines = source.split("\n")
    found = []
    for frame in traceback:
        line = frame.line - NUM_LINES_BEFORE
        if 1 <= line <= len(lines):
            function = frame.function_name or "<module>"
            found.append(ScriptFrame(line=line, column=frame.column, function=function, source=lines[line - 1]))
    return found
