"""From a script's text to a program that may run; what was found is remembered by digest."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from extensions.errors import CAPABILITY_MISSING, CapabilityMissing, Diagnostic, ProgramInvalid
from extensions.programs.header import Header, read_header
from extensions.programs.program import Program, digest_of
from extensions.sandbox.checking import CHECK_S, TOO_LONG, check_types
from extensions.sandbox.pool import WorkerPool
from extensions.sandbox.surroundings import lacking

MAX_REMEMBERED = 1024
"""Scripts whose check is remembered."""

_INLINE_CHARS = 4096
"""Longer scripts are parsed in a thread, so that other requests go on meanwhile."""


class ProgramChecker:
    """Checks scripts, each once, however many ask at once.

    Attributes:
        num_checked: Checks that were not answered from memory.
    """

    def __init__(self, pool: WorkerPool, *, check_s: float = CHECK_S) -> None:
        self.num_checked = 0
        self._pool = pool
        self._check_s = check_s
        self._known: OrderedDict[str, Program | ProgramInvalid] = OrderedDict()
        self._checking: dict[str, asyncio.Task[Program | ProgramInvalid]] = {}

    async def check(self, source: str, max_bytes: int) -> Program:
        """Returns the program, warnings or not.

        Args:
            source: The script.
            max_bytes: Its largest size, in UTF-8.

        Raises:
            ProgramInvalid: It must not run.
            SandboxUnavailable: It cannot be checked now.
        """
        if (problem := _text_problem(source, max_bytes)) is not None:
            raise ProgramInvalid([Diagnostic(line=1, column=1, message=problem)])
        digest = digest_of(source)
        found = self._known.get(digest)
        if found is None:
            found = await self._shared(digest, source)
        else:
            self._known.move_to_end(digest)
        if isinstance(found, ProgramInvalid):
            raise type(found)(found.diagnostics)
        return found

    async def _shared(self, digest: str, source: str) -> Program | ProgramInvalid:
        task = self._checking.get(digest)
        if task is None:
            task = self._checking[digest] = asyncio.ensure_future(self._check(digest, source))
            task.add_done_callback(lambda _: self._checking.pop(digest, None))
        return await asyncio.shield(task)

    async def _check(self, digest: str, source: str) -> Program | ProgramInvalid:
        self.num_checked += 1
        is_long = len(source) > _INLINE_CHARS
        header = await asyncio.to_thread(read_header, source) if is_long else read_header(source)
        found = await self._judge(digest, source, header)
        if isinstance(found, ProgramInvalid) and any(one.rule == TOO_LONG for one in found.diagnostics):
            return found  # perhaps only the machine was busy
        self._known[digest] = found
        if len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return found

    async def _judge(self, digest: str, source: str, header: Header) -> Program | ProgramInvalid:
        problems = list(header.diagnostics)
        if not any(one.rule == "invalid-syntax" for one in problems):
            missing = await lacking(self._pool, header.uses)
            types = await check_types(self._pool, source, header.annotations, check_s=self._check_s)
            problems += missing + [one for one in types if not _is_told(one, missing)]
        if errors := [one for one in problems if one.severity == "error"]:
            kind = CapabilityMissing if all(one.rule == CAPABILITY_MISSING for one in errors) else ProgramInvalid
            return kind(sorted(problems, key=lambda one: (one.line, one.column)))
        fields = header.fields
        return Program(
            source=source,
            digest=digest,
            name=fields.get("name", ""),
            version=fields.get("version", ""),
            description=header.description,
            params=fields.get("params"),
            needs=tuple(header.needs),
        )


def _is_told(problem: Diagnostic, missing: Sequence[Diagnostic]) -> bool:
    """Whether what is missing has been told already, with what there is instead."""
    if not problem.rule.startswith("unresolved-"):
        return False
    return any(one.line == problem.line and one.column <= problem.column <= one.end_column for one in missing)


def _text_problem(source: str, max_bytes: int) -> str | None:
    if not source.strip():
        return "the program is empty"
    if len(source) > max_bytes:
        return f"the program has {len(source)} characters, at most {max_bytes} bytes are allowed"
    try:
        num_bytes = len(source.encode())
    except UnicodeEncodeError:
        return "the program is no valid Unicode text"
    if num_bytes > max_bytes:
        return f"the program has {num_bytes} bytes, at most {max_bytes} are allowed"
    if "\0" in source:
        return "the program holds a NUL character"
    return None
