"""A script is checked before any line of it runs: its types, and that the sandbox knows all of its syntax."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pydantic_monty as monty

from extensions.errors import Diagnostic, SandboxUnavailable
from extensions.programs.header import Insertion
from extensions.sandbox.pool import WorkerPool
from extensions.sandbox.published import stubs_text
from extensions.sandbox.script import CHECK_ONLY, NUM_LINES_BEFORE, to_check

CHECK_S = 5.0
"""Longest that a check may take unless told otherwise; scripts of the largest size take tenths of a second."""

TOO_LONG = "check-too-long"
"""The rule that a script breaks whose check does not come to its end."""

MAX_DIAGNOSTICS = 50
"""Problems that are told of one script."""

_MEMORY_BYTES = 64 * 2**20
# The sandbox knows these exceptions, and its checker does not.
_EXCEPTIONS = (("PermissionError", "OSError"), ("ImportError", "Exception"), ("ModuleNotFoundError", "ImportError"))
_CLASSES = "".join(f"class {name}({base}): ...\n" for name, base in _EXCEPTIONS)
_STUBS_END = f"\n{_CLASSES}def {CHECK_ONLY}() -> None: ...\n"


async def check_types(
    pool: WorkerPool, source: str, annotations: Sequence[Insertion], *, check_s: float = CHECK_S
) -> list[Diagnostic]:
    """Checks a script in a process of its own kind; nothing of the script runs.

    Args:
        pool: Where.
        source: The script.
        annotations: Types to add to it; columns are told as if they were not there.
        check_s: Longest that it may take.

    Returns:
        Its problems, in the order of lines.

    Raises:
        SandboxUnavailable: No process became free, or it died.
    """
    shifts = _Shifts(annotations)
    text = to_check(shifts.applied(source))
    limits = monty.ResourceLimits(max_feed_duration_secs=check_s, max_memory=_MEMORY_BYTES)
    async with pool.checkout(limits, stubs=stubs_text() + _STUBS_END) as session:
        try:
            await session.feed_run(text, print_callback=_ignore)
        except monty.MontyTypingError as error:
            return [shifts.counted_back(one) for one in json.loads(error.display())][:MAX_DIAGNOSTICS]
        except monty.MontyCrashedError as error:
            if error.timed_out:
                message = f"the check took more than {check_s:g} s: it may be nested too deeply"
                return [Diagnostic(line=1, column=1, message=message, rule=TOO_LONG)]
            raise SandboxUnavailable(f"the process that checked the program died: {error}") from error
        except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
            return _unsupported(error, shifts)
    raise SandboxUnavailable("the sandbox ran a program that was only to be checked")


def _ignore(stream: str, text: str) -> None:
    """Nothing prints before the check ends."""


def _unsupported(error: monty.MontyRuntimeError | monty.MontySyntaxError, shifts: _Shifts) -> list[Diagnostic]:
    """What the sandbox said when it compiled the script; none if it only ended where a check ends."""
    inner, frames = error.exception(), error.traceback()
    if isinstance(inner, NameError) and CHECK_ONLY in str(inner):
        return []
    message = str(inner).replace("The monty syntax parser does not yet support", "programs cannot use")
    if not frames:
        return [Diagnostic(line=1, column=1, message=message, rule="unsupported-syntax")]
    at = frames[-1]
    line, column = shifts.place(at.line - NUM_LINES_BEFORE, at.column)
    end_line, end_column = shifts.place(at.end_line - NUM_LINES_BEFORE, at.end_column)
    return [
        Diagnostic(
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            message=message,
            rule="unsupported-syntax",
        )
    ]


class _Shifts:
    """Text put into lines, and how columns behind it are counted back."""

    def __init__(self, insertions: Sequence[Insertion]) -> None:
        self._insertions = sorted(insertions, key=lambda one: (one.line, one.column), reverse=True)

    def applied(self, source: str) -> str:
        """The text with the insertions."""
        lines = source.split("\n")
        for one in self._insertions:
            line = lines[one.line - 1]
            lines[one.line - 1] = line[: one.column] + one.text + line[one.column :]
        return "\n".join(lines)

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Where that is in the text without them; both from 1."""
        for one in reversed([one for one in self._insertions if one.line == line]):
            if column - 1 > one.column:
                column = max(one.column + 1, column - len(one.text))
        return max(line, 1), column

    def counted_back(self, told: dict[str, Any]) -> Diagnostic:
        """A problem as the type checker tells it."""
        start, end = told["location"], told["end_location"]
        line, column = self.place(start["row"] - NUM_LINES_BEFORE, start["column"])
        end_line, end_column = self.place(end["row"] - NUM_LINES_BEFORE, end["column"])
        return Diagnostic(
            line=line,
            column=column,
            end_line=end_line,
            end_column=end_column,
            message=told["message"],
            severity="error" if told["severity"] in ("error", "fatal") else "warning",
            rule=told["code"] or "",
        )
