"""Programs that a program starts: they end with it, and what they use counts against its limits too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from extensions.errors import (
    ArgumentsInvalid,
    NotResumable,
    ProgramError,
    ProgramInvalid,
    ReplayDiverged,
    SandboxUnavailable,
    ScriptCrashed,
)
from extensions.journal.effects import effect
from extensions.journal.journal import Journal, current
from extensions.programs.faults import fault, invalid
from extensions.programs.generating import Usage
from extensions.programs.jsons import copied
from extensions.programs.request import ProgramOutcome, ProgramRequest, ProgramUsage

if TYPE_CHECKING:
    from extensions.programs.doors import ProgramSource
    from extensions.programs.program import Program
    from extensions.programs.run import ProgramRun
    from extensions.programs.scope import RunScope

MAX_NAME_CHARS = 200

_ENDING = (NotResumable, ReplayDiverged, ScriptCrashed)
"""What ends a whole run of which a journal is kept: it is gone on with, or cannot be."""


class ChildResult(NamedTuple):
    """See `ChildResult` in the stubs."""

    text: str
    result: Any
    message: dict[str, Any] | None
    finish_reason: str
    exec_path: str
    usage: Usage
    logs: str


class _Ended(NamedTuple):
    """A child that has run."""

    result: ChildResult
    usage: ProgramUsage


class ChildCalls:
    """What `lm` can do with other programs."""

    _scope: RunScope

    async def run(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> ChildResult:
        """Runs another program to its end."""
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise invalid(f"name must be a text of 1 to {MAX_NAME_CHARS} characters")
        return await self._run(lambda programs: programs.find(name), name, args, messages, limits)

    async def run_source(
        self,
        source: str,
        args: Mapping[str, Any] | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> ChildResult:
        """Checks a text, and runs it to its end as a program."""
        if not isinstance(source, str):
            raise invalid("source must be text")
        return await self._run(lambda programs: programs.check(source), "the program", args, messages, limits)

    async def _run(
        self,
        find: Callable[[ProgramSource], Awaitable[Program]],
        name: str,
        args: Mapping[str, Any] | None,
        messages: Sequence[Mapping[str, Any]] | None,
        limits: Mapping[str, float] | None,
    ) -> ChildResult:
        scope = self._scope
        programs = scope.world.children
        if programs is None:
            raise fault("capability_missing", "programs cannot start programs here")
        given = _messages(scope.request.messages if messages is None else messages)
        asked = copied({} if args is None else args, "args")
        if not isinstance(asked, dict):
            raise invalid("args must be a dict")
        number = scope.guard.open_child()
        request = replace(
            scope.request,
            messages=given,
            prompt=scope.request.prompt if messages is None else "",
            args=asked,
            stream=False,
            id=f"{scope.request.id}.{number}",
            exports_as="",
        )
        call = current()
        journal = None if call is None else call.journal.child(call.key("program"))
        ended: _Ended = await effect(
            "child",
            [name, asked, given],
            lambda: self._started(find, programs, request, limits, name, journal),
            waits=True,
            pack=msgspec.to_builtins,
            unpack=self._ended_before,
        )
        return ended.result

    async def _started(
        self,
        find: Callable[[ProgramSource], Awaitable[Program]],
        programs: ProgramSource,
        request: ProgramRequest,
        limits: Mapping[str, float] | None,
        name: str,
        journal: Journal | None,
    ) -> _Ended:
        scope = self._scope
        try:
            program = await find(programs)
            allowed = scope.guard.limits.narrowed(limits or {})
            run = await scope.launch(
                program,
                request,
                limits=scope.guard.left_of(allowed),
                world=replace(scope.world, inbox=None),
                parent=scope.guard,
                journal=journal,
            )
        except (ArgumentsInvalid, ProgramInvalid, SandboxUnavailable) as error:
            raise _refused(error) from None
        return await self._finished(run, name)

    async def _finished(self, run: ProgramRun, name: str) -> _Ended:
        try:
            outcome = await run.result()
        except ProgramError as error:
            if isinstance(error, _ENDING) and current() is not None:
                raise
            raise fault("child_failed", f"{name}: {error.code}: {error.message}") from None
        finally:
            self._scope.guard.absorb(run.usage)
        return _Ended(_result(outcome), outcome.usage)

    def _ended_before(self, data: Any) -> _Ended:
        ended = _from_journal(data)
        self._scope.guard.take_over(ended.usage)
        return ended


def _from_journal(data: Any) -> _Ended:
    """What `msgspec.to_builtins` made of a child that has run."""
    # Field by field: records of scripts are said to be of a module that is only there for scripts, so that their types
    # cannot be looked up.
    fields, usage = data
    told = dict(zip(ChildResult._fields, fields, strict=True))
    told["usage"] = Usage(*told["usage"])
    return _Ended(ChildResult(**told), msgspec.convert(usage, ProgramUsage))


def _refused(error: ProgramError) -> Exception:
    if isinstance(error, ArgumentsInvalid):
        return invalid(error.message)
    return fault(error.code if isinstance(error, ProgramInvalid) else "server_busy", error.message)


def _messages(messages: object) -> list[dict[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise invalid("messages must be a list of messages")
    found = copied(list(messages), "messages")
    if not all(isinstance(message, dict) for message in found):
        raise invalid("messages must be a list of messages")
    return list(found)


def _result(outcome: ProgramOutcome) -> ChildResult:
    used = outcome.usage
    return ChildResult(
        text=outcome.content or "",
        result=outcome.result,
        message=None if outcome.message is None else dict(outcome.message),
        finish_reason=outcome.finish_reason,
        exec_path=outcome.exec_path,
        usage=Usage(used.num_prompt_tokens, used.num_cached_tokens, used.num_completion_tokens),
        logs=outcome.logs,
    )
