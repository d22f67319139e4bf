"""Runs one script in a process of the pool and answers its calls."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pydantic_monty as monty

from extensions.errors import ScriptCrashed, ScriptError, ScriptLimitExceeded
from extensions.journal.journal import Call, Journal
from extensions.programs.faults import FaultLog, RunEnded, code_of, to_fault
from extensions.programs.guard import Guard
from extensions.programs.limits import ProgramLimits
from extensions.programs.stepping import ScriptGeneration
from extensions.sandbox.bindings import Handle
from extensions.sandbox.ordered import CallOrder, policy
from extensions.sandbox.pool import WorkerPool
from extensions.sandbox.script import Runnable, frames_of, to_run

_SUSPENSIONS_PER_CALL = 4
"""A call may stop the script more than once: for the name, for the call, for its answer."""

_CANCEL_AGAIN_S = 0.1

_MILLISECONDS = re.compile(r"exceeded: ([0-9.]+)(ns|µs|ms|s) >")
_TOO_MANY = re.compile(r"limit_exceeded: ([0-9]+) contexts at once")
_ODD_EXCEPTION = re.compile(r"exceptions can only be called with zero or one string argument$")
_BYTES = re.compile(r"exceeded: ([0-9]+) bytes >")
_SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


class ScriptHost:
    """One run of one script.

    Args:
        pool: Where it runs.
        guard: Counts its calls and ends it at a limit.
        on_print: Told of what it prints, in the event loop.
        journal: Where its calls are written down; None if they are not.

    Attributes:
        num_handles: See `Calls`.
    """

    def __init__(
        self, pool: WorkerPool, guard: Guard, on_print: Callable[[str], None], journal: Journal | None = None
    ) -> None:
        self._pool = pool
        self._guard = guard
        self._on_print = on_print
        self._order = None if journal is None else CallOrder(journal, guard.fail)
        self._faults = FaultLog()
        self.num_handles = 0
        self._answering: set[asyncio.Task[Any]] = set()

    # -- the run ----------------------------------------------------------------------------------------------------

    async def run(self, source: str, request: object, lm: object, exports_as: str = "") -> str:
        """Runs a checked script to its end and returns what `main` returned, as JSON.

        Whatever it called and that still goes on is cancelled before this returns or raises.

        Args:
            source: The script.
            request: What it answers.
            lm: What it can do.
            exports_as: See `extensions.sandbox.script.to_run`.

        Raises:
            ScriptError: It raised.
            ScriptLimitExceeded: It reached a limit.
            ScriptCrashed: Its process died.
            SandboxUnavailable: There is no process for it.
            EngineStopped: The engine is gone.
        """
        try:
            os_policy = None if self._order is None else policy(self._order.journal.name)
            async with self._pool.checkout(_resource_limits(self._guard.limits), os_policy=os_policy) as session:
                inputs = {"request": Handle(request, self), "lm": Handle(lm, self)}
                runnable = to_run(source, exports_as, is_journaled=self._order is not None)
                return await self._fed(session, source, runnable, inputs)
        finally:
            await self._end_calls()

    async def _fed(
        self, session: monty.AsyncMontySession, source: str, runnable: Runnable, inputs: dict[str, Any]
    ) -> str:
        guard, loop, (code, rest) = self._guard, asyncio.get_running_loop(), runnable

        def on_print(_: str, text: str) -> None:
            # Called in a thread of the pool.
            loop.call_soon_threadsafe(self._on_print, text)

        if self._order is None:
            feed = asyncio.ensure_future(session.feed_run(code, inputs=inputs, print_callback=on_print))
        else:
            feed = asyncio.ensure_future(self._order.feed(session, code, inputs, on_print))
        try:
            output = await self._guarded(feed)
        except monty.MontyError as error:
            if rest and guard.failure is None and not isinstance(error, monty.MontyCrashedError):
                await self._settle_after(session, rest)
            if guard.failure is not None:
                raise guard.failure from None
            described = self._described(error, source)
            if isinstance(described, ScriptCrashed):
                self._freeze()
            raise described from None
        if rest and isinstance(output, list) and len(output) == 2:
            output = _settled(output)
        # What it printed last is on its way still.
        await asyncio.sleep(0)
        if guard.failure is not None:
            raise guard.failure
        if not isinstance(output, str):
            raise ScriptError("TypeError", "the program's result did not arrive as JSON text")
        return output

    async def _guarded(self, feed: asyncio.Future[Any]) -> Any:
        """Waits for what runs in the sandbox; a failure of the run ends it."""
        guard = self._guard
        end_run, guard.on_failure = guard.on_failure, feed.cancel
        if guard.failure is not None:
            feed.cancel()
        try:
            return await feed
        except asyncio.CancelledError:
            if guard.failure is None:
                raise
            raise guard.failure from None
        finally:
            guard.on_failure = end_run
            feed.cancel()

    async def _settle_after(self, session: monty.AsyncMontySession, rest: str) -> None:
        """Asks a script that raised what it has taken and not told: the sandbox has its variables still.

        Where it can run no more, what it was given counts (`ScriptGeneration.aclose`).
        """
        with contextlib.suppress(monty.MontyError, RuntimeError):
            _settle(await self._guarded(asyncio.ensure_future(session.feed_run(rest))))

    async def _end_calls(self) -> None:
        tasks = {task for task in self._answering if task is not asyncio.current_task()}
        # Clients of stores can swallow a cancellation that comes while a command is sent.
        while tasks:
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=_CANCEL_AGAIN_S)

    # -- its calls --------------------------------------------------------------------------------------------------

    def begin(self, kind: str, name: str, args: object, kwargs: object) -> Call | None:
        """See `Calls.begin`."""
        self._guard.count_call()
        return None if self._order is None else self._order.begin(f"{kind}.{name}", args, kwargs)

    async def finish(self, coro: Coroutine[Any, Any, Any], call: Call | None = None) -> Any:
        """See `Calls.finish`."""
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            if self._guard.failure is not None:
                coro.close()
                raise RunEnded
            if self._order is None or call is None:
                return await coro
            return await self._in_turn(coro, call, self._order)
        except Exception as error:
            raise self.crossing(error) from None
        finally:
            self._answering.discard(task)

    async def _in_turn(self, coro: Coroutine[Any, Any, Any], call: Call, order: CallOrder) -> Any:
        try:
            result = await call.follow(coro)
        except Exception as error:
            if to_fault(error) is not None:
                await order.turn(call)
            raise
        await order.turn(call)
        return result

    def crossing(self, error: Exception) -> Exception:
        """See `Calls.crossing`; an error that is not the script's to handle ends the run."""
        seen = None if isinstance(error, RunEnded) else to_fault(error)
        if seen is None:
            if not isinstance(error, RunEnded):
                self._freeze()
            self._guard.fail(error)
            return RunEnded()
        self._faults.note(seen, error)
        return seen

    # -- its end ----------------------------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """The run ends by something that is nobody's wish: what ends with it was not given up by the script."""
        if self._order is not None:
            self._order.journal.freeze()

    def _described(self, error: monty.MontyError, source: str) -> Exception:
        limits = self._guard.limits
        if isinstance(error, monty.MontyCrashedError):
            if error.timed_out:
                return ScriptLimitExceeded("exec_s", limits.exec_s, limits.exec_s)
            return ScriptCrashed(f"The process that ran the program died: {error}")
        inner = error.exception()
        text = str(inner)
        reached = _limit_of(inner, text, limits)
        if reached is not None:
            return reached
        if _ODD_EXCEPTION.search(text):
            reason = "exceptions of a program take no argument or one text; write raise ValueError(str(...))"
            return ScriptError("TypeError", reason, [], code="extension_error", cause=None)
        frames = frames_of(error.traceback(), source) if isinstance(error, monty.MontyRuntimeError) else []
        cause = self._faults.cause_of(inner)
        if cause is not None and (held := _TOO_MANY.match(text)):
            return ScriptLimitExceeded("contexts", int(held[1]), limits.contexts)
        code = (code_of(inner) if cause is not None else None) or "extension_error"
        return ScriptError(type(inner).__name__, text, frames, code=code, cause=cause)


def _settled(output: list[Any]) -> Any:
    """What a script returned, once what it left untold is told."""
    result, untold = output
    _settle(untold)
    return result


def _settle(untold: object) -> None:
    """Counts what a script took of steps that it knew, and has not told; it may say anything."""
    for one in untold if isinstance(untold, list) else ():
        match one:
            case [ScriptGeneration() as generation, count, choices]:
                generation.settle(count, choices)


def _resource_limits(limits: ProgramLimits) -> monty.ResourceLimits:
    return monty.ResourceLimits(
        max_feed_duration_secs=limits.exec_s,
        max_memory=limits.memory_bytes,
        max_recursion_depth=limits.recursion,
        max_suspensions=limits.host_calls * _SUSPENSIONS_PER_CALL + 1000,
        max_total_sleep_secs=limits.wall_s,
    )


def _limit_of(error: BaseException, text: str, limits: ProgramLimits) -> ScriptLimitExceeded | None:
    """The limit of the sandbox that an exception stands for; none of these can be caught inside."""
    if isinstance(error, TimeoutError) and text.startswith("feed time limit exceeded"):
        found = _MILLISECONDS.search(text)
        used_s = limits.exec_s if found is None else float(found[1]) * _SECONDS[found[2]]
        return ScriptLimitExceeded("exec_s", used_s, limits.exec_s)
    if isinstance(error, TimeoutError) and text.startswith("sleep limit exceeded"):
        return ScriptLimitExceeded("wall_s", limits.wall_s, limits.wall_s)
    if isinstance(error, MemoryError) and "memory limit" in text:
        found = _BYTES.search(text)
        used = limits.memory_bytes + 1 if found is None else int(found[1])
        return ScriptLimitExceeded("memory_bytes", used, limits.memory_bytes)
    if isinstance(error, RecursionError) and "recursion depth" in text:
        return ScriptLimitExceeded("recursion", limits.recursion + 1, limits.recursion)
    if isinstance(error, RuntimeError) and "suspension" in text:
        return ScriptLimitExceeded("host_calls", limits.host_calls + 1, limits.host_calls)
    return None
