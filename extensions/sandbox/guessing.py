"""Functions as drafters: what a script passes to `generate` as `drafter` can only be called inside the sandbox.

A function does not cross to the server. So where a call of `generate` names a drafter that may be one, the script is
run with a call of a function in its place that asks the server for one step after the other, and the drafter between:

    await ctx.generate(max_tokens=9, drafter=propose)   ->   await wye_generate(ctx, max_tokens=9, drafter=propose)

No line of the script moves.
"""

from __future__ import annotations

import ast
from functools import lru_cache

_NAME = "wye_generate"

GUESSING = f"""
async def {_NAME}(wye_context, **wye_fields):
    wye_propose = wye_fields["drafter"]
    if str(type(wye_propose)) != "<class 'function'>" or str(type(wye_context)) != "<class 'Context'>":
        return await wye_context.generate(**wye_fields)
    wye_fields.pop("drafter")
    wye_drafting = await wye_context.drafting(**wye_fields)
    wye_tokens = list(wye_drafting.history)
    wye_seen = await wye_drafting.next()
    while wye_seen.wanted:
        wye_tokens.extend(wye_seen.tokens)
        wye_guess, wye_q = wye_propose(wye_tokens, wye_seen.wanted), None
        if str(type(wye_guess)) == "<class 'coroutine'>":
            wye_guess = await wye_guess
        if isinstance(wye_guess, tuple) and len(wye_guess) == 2:
            wye_guess, wye_q = wye_guess
        wye_seen = await wye_drafting.next([] if wye_guess is None else wye_guess, wye_q)
    return await wye_drafting.completion()
"""
"""What stands for `generate` where the drafter may be a function.

It catches nothing, for the sandbox forgets where an error came from when it is raised again: a context whose drafter
raised is freed when the script turns to it (`ScriptContext.left_behind`)."""


@lru_cache(maxsize=64)
def with_guessing(source: str) -> str:
    """The script as it is run: itself, unless it passes drafters that may be functions."""
    if "drafter" not in source:
        return source
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and _may_guess(node)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source  # the sandbox has its own word for what is wrong with it
    if not calls:
        return source
    data = source.encode("utf-8", "surrogatepass")
    starts = _line_starts(data)
    changes: list[tuple[int, int, bytes]] = []
    for call in calls:
        function = call.func
        assert isinstance(function, ast.Attribute)
        assert function.end_lineno is not None
        assert function.end_col_offset is not None
        begin = starts[call.lineno - 1] + call.col_offset
        name_end = starts[function.end_lineno - 1] + function.end_col_offset
        dot = data.rindex(b".", begin, name_end)
        opened = data.index(b"(", name_end)
        lines = data[dot:opened].count(b"\n")
        changes.append((begin, begin, f"{_NAME}(".encode()))
        changes.append((dot, opened + 1, b"," + b"\n" * lines + b" "))
    for begin, end, text in sorted(changes, reverse=True):
        data = data[:begin] + text + data[end:]
    return data.decode("utf-8", "surrogatepass") + GUESSING


def _may_guess(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "generate" or call.args:
        return False
    drafters = [one.value for one in call.keywords if one.arg == "drafter"]
    return bool(drafters) and not isinstance(drafters[0], ast.Constant | ast.Dict)


def _line_starts(data: bytes) -> list[int]:
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts
