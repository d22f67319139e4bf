"""What the sandbox has of Python's own library: asked of it, so that checks know what runs will meet."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Sequence

import pydantic_monty as monty

from extensions.errors import Diagnostic, SandboxUnavailable
from extensions.programs.uses import Use
from extensions.sandbox.pool import WorkerPool

MODULES = (
    "asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal",
    "functools", "hashlib", "itertools", "json", "math", "os", "pathlib", "random", "re", "sys", "time", "tomllib",
    "typing", "unicodedata",
)  # fmt: skip
"""Modules that there are."""

LACKING = "not-in-sandbox"
"""The rule that a script breaks which uses what is not there."""

_FILES = "programs have no files and no environment"
_OUTSIDE = {
    "": {"open"},
    "os": {
        "chdir", "environ", "getenv", "listdir", "makedirs", "mkdir", "remove", "rename", "replace", "rmdir", "scandir",
        "stat", "unlink", "urandom", "walk",
    },
    "os.path": {
        "exists", "expanduser", "expandvars", "getatime", "getctime", "getmtime", "getsize", "isdir", "isfile",
        "islink", "ismount", "lexists", "realpath", "samefile",
    },
}  # fmt: skip
"""What is there and is refused: it reaches out of the sandbox."""

_INSTEAD = {
    "aiohttp": "lm.http",
    "contextvars": "arguments",
    "http": "lm.http",
    "httpx": "lm.http",
    "input": "lm.receive()",
    "logging": "print()",
    "multiprocessing": "lm.run() and asyncio.gather()",
    "os.urandom": "random.randbytes()",
    "requests": "lm.http",
    "secrets": "random",
    "shelve": "lm.store",
    "socket": "lm.http",
    "sqlite3": "lm.store",
    "subprocess": "lm.tool()",
    "sys.exit": "return",
    "threading": "asyncio.gather()",
    "urllib": "lm.http",
    "uuid": "random.randbytes(16).hex()",
}
_MAX_ASKED = 1000
_MAX_KNOWN = 10_000
_MAX_NAMED = 12
_ASK_S = 5.0
_MEMORY_BYTES = 64 * 2**20

_known: dict[tuple[str, str], bool] = {}
"""What the sandbox has answered; it always answers the same."""


async def lacking(pool: WorkerPool, uses: Sequence[Use]) -> list[Diagnostic]:
    """What a script uses and the sandbox does not have; warnings where the script catches that.

    Args:
        pool: Asks one of its processes, once about each thing.
        uses: Of the script.

    Raises:
        SandboxUnavailable: No process became free, or it died.
    """
    asked = {(one.module, one.name) for one in uses} | {(one.module, "") for one in uses if one.module}
    await _ask(pool, asked)
    found = []
    for use in uses:
        is_there = _known.get((use.module, ""), True)
        if use.name and not is_there:
            continue  # that of the module is told
        if use.name in _OUTSIDE.get(use.module, ()):
            message = f"{_FILES}: {_title(use)} is refused"
        elif not _known.get((use.module, use.name), True):
            message = await _message(pool, use)
        else:
            continue
        instead = _INSTEAD.get(_title(use)) or _INSTEAD.get(use.module.partition(".")[0] if not use.name else "")
        found.append(
            Diagnostic(
                line=use.line,
                column=use.column,
                end_line=use.end_line,
                end_column=use.end_column,
                message=message + (f"; use {instead}" if instead else ""),
                severity="warning" if use.is_guarded else "error",
                rule=LACKING,
            )
        )
    return found


async def _message(pool: WorkerPool, use: Use) -> str:
    if not use.name:
        return f"programs have no module {use.module!r}; there are {', '.join(MODULES)}"
    if not use.module:
        return f"programs have no {use.name}()"
    names = await _names(pool, use.module)
    near = difflib.get_close_matches(use.name, names, _MAX_NAMED, 0.7)
    few = names if len(names) <= _MAX_NAMED else near
    return f"{use.module!r} has no {use.name!r} in programs" + (f"; there are {', '.join(few)}" if few else "")


async def _names(pool: WorkerPool, module: str) -> list[str]:
    """What a module of the sandbox has, of what Python's has."""
    if module not in (*MODULES, "os.path"):
        return []
    public = [name for name in dir(importlib.import_module(module)) if not name.startswith("_")]
    await _ask(pool, {(module, name) for name in public})
    refused = _OUTSIDE.get(module, ())
    return [name for name in public if _known.get((module, name)) and name not in refused]


async def _ask(pool: WorkerPool, asked: Iterable[tuple[str, str]]) -> None:
    new = sorted(one for one in asked if one not in _known)[:_MAX_ASKED]
    if not new:
        return
    told: list[str] = []
    limits = monty.ResourceLimits(max_feed_duration_secs=_ASK_S, max_memory=_MEMORY_BYTES)
    async with pool.checkout(limits) as session:
        try:
            await session.feed_run(_question(new), print_callback=lambda _, text: told.append(text))
        except monty.MontyError as error:
            raise SandboxUnavailable(f"the process that checked the program died: {error}") from error
    there = {int(line) for line in "".join(told).split()}
    if len(_known) > _MAX_KNOWN:
        _known.clear()
    _known.update({one: at in there for at, one in enumerate(new)})


def _question(asked: Sequence[tuple[str, str]]) -> str:
    """A script that prints the places of what it finds."""
    lines = []
    for at, (module, name) in enumerate(asked):
        reach = f"    import {module} as wye_module\n" if module else ""
        if module and name:
            found = f"    wye_module.{name}\n    print({at})\n"
        else:
            found = ("" if module else f"    {name}\n") + f"    print({at})\n"
        # What is refused when it is asked for is there: it is told apart elsewhere.
        lines.append(f"try:\n{reach}{found}except (ImportError, AttributeError, NameError):\n    pass\n")
        lines.append(f"except RuntimeError:\n    print({at})\n")
    return "".join(lines)


def _title(use: Use) -> str:
    return ".".join(filter(None, (use.module, use.name)))
