"""Calls of tools by a script: one that it waits for, and those that go on beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from extensions.journal.effects import effect, value
from extensions.programs.faults import fault, invalid
from extensions.programs.jsons import checked_name, copied, seconds
from extensions.tools.catalog import Effect, ToolCatalog, ToolResult

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from extensions.programs.scope import RunScope

Status = Literal["waiting", "running", "done", "failed", "cancelled"]
Cancelled = Literal["not_started", "done", "unknown"]


def catalog_of(scope: RunScope) -> ToolCatalog:
    """The run's tools.

    Raises:
        RuntimeError: There are none (`capability_missing`).
    """
    if scope.world.tools is None:
        raise fault("capability_missing", "this server has no tools for programs")
    return scope.world.tools


async def call_tool(scope: RunScope, name: str, arguments: Mapping[str, Any], key: str | None) -> ToolResult:
    """Calls a tool by its name, counted and noted.

    Raises:
        ToolError: There is no answer.
        RuntimeError: There are no tools.
    """
    return await answered(scope, name, catalog_of(scope).call(name, arguments, key))


async def answered(scope: RunScope, name: str, call: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    """Waits for a tool's answer, counted and noted.

    Raises:
        ToolError: There is none.
    """
    try:
        scope.guard.count_tool_call()
    except BaseException:
        call.close()
        raise
    number = str(scope.guard.usage.num_tool_calls)
    scope.trace.note("tool.start", call=number, name=name)
    is_error = True
    try:
        result = await call
        is_error = result.is_error
    finally:
        scope.trace.note("tool.end", call=number, name=name, is_error=is_error)
    scope.note_foreign(result.text)
    if result.has_json:
        scope.note_foreign(json.dumps(result.json, ensure_ascii=False))
    return result


def value_of(name: str, result: ToolResult) -> Any:
    """What a script gets of an answer.

    Raises:
        RuntimeError: The tool says that it did not work (`tool_failed`).
    """
    if result.is_error:
        raise fault("tool_failed", f"{name}: {result.text}")
    return result.value


def read_call(name: object, arguments: object, key: object) -> tuple[str, dict[str, Any], str | None]:
    """The arguments of a call.

    Raises:
        ValueError: They are not what they must be (`invalid_argument`).
    """
    given = copied({} if arguments is None else arguments, "args")
    if not isinstance(given, dict):
        raise invalid("args must be a dict")
    return checked_name(name, "name"), given, None if key is None else checked_name(key, "key")


async def _has_ended(task: asyncio.Task[ToolResult], limit_s: float | None) -> bool:
    done, _ = await asyncio.wait({task}, timeout=limit_s)
    return bool(done)


class ScriptToolCall:
    """A call that goes on beside the script; see `ToolCall` in the stubs.

    What cannot be undone begins only when its result is asked for: until then, `cancel` is as if it had never been.

    Attributes:
        name: Of the tool.
    """

    def __init__(self, scope: RunScope, name: str, arguments: dict[str, Any], key: str | None, effect: Effect) -> None:
        self.name = name
        self._scope = scope
        self._arguments = arguments
        self._key = key
        self._is_cancelled = False
        self._task: asyncio.Task[ToolResult] | None = None
        if effect != "irreversible":
            self._begin()

    @property
    def status(self) -> Status:
        """Where it stands."""
        task = self._task
        if self._is_cancelled:
            return "cancelled"
        if task is None or not task.done():
            return "waiting" if task is None else "running"
        failed = task.cancelled() or task.exception() is not None or task.result().is_error
        return "failed" if failed else "done"

    async def result(self, *, timeout_s: float | None = None) -> Any:
        """Waits for the answer."""
        return value_of(self.name, await self.answer(timeout_s))

    async def answer(self, timeout_s: float | None = None) -> ToolResult:
        """Waits for the answer as the tool gave it.

        Raises:
            ToolError: There is none.
            TimeoutError: Not yet (`tool_timeout`); the call goes on.
            ValueError: It was cancelled (`invalid_argument`).
        """
        limit_s = seconds(timeout_s, "timeout_s")
        if self._is_cancelled:
            raise invalid(f"the call of {self.name} was cancelled")
        task = self._task or self._begin()
        if not await effect("wait", None, lambda: _has_ended(task, limit_s), waits=True):
            message = f"{self.name} has not answered in {limit_s:g} s; it goes on, and result() may be awaited again"
            raise fault("tool_timeout", message)
        await asyncio.wait({task})
        if task.cancelled():
            raise invalid(f"the call of {self.name} was cancelled")
        return task.result()

    async def cancel(self) -> Cancelled:
        """Gives the call up, and says what that means."""
        task = self._task
        is_done = task is not None and task.done() and not self._is_cancelled
        if value("cancel", lambda: is_done):
            return "done"
        self._is_cancelled = True
        if task is None:
            return "not_started"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "unknown"

    def _begin(self) -> asyncio.Task[ToolResult]:
        self._task = self._scope.beside(call_tool(self._scope, self.name, self._arguments, self._key))
        return self._task
