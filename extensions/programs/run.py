"""A running program: events as they come, then an outcome or an error."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from extensions.errors import RunCancelled, ScriptLimitExceeded
from extensions.journal.doors import journaled
from extensions.journal.journal import Journal
from extensions.parsing.formats import ToolFormat
from extensions.programs.events import RunEvents
from extensions.programs.given import ScriptRequest
from extensions.programs.guard import Guard
from extensions.programs.kv_limits import kv_limited
from extensions.programs.limits import ProgramLimits
from extensions.programs.lm import ScriptLM
from extensions.programs.program import Program
from extensions.programs.request import LogWritten, ProgramOutcome, ProgramRequest, ProgramUsage, RunEvent, TextEmitted
from extensions.programs.results import read_result
from extensions.programs.scope import Launch, RunScope
from extensions.programs.trace import Trace
from extensions.programs.turns import Turns
from extensions.programs.world import World
from extensions.sandbox.host import ScriptHost
from extensions.tracing import mark_failed, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.client import EngineClient
    from engine.text.model import TextModel
    from extensions.live_context import LiveContext
    from extensions.sandbox.pool import WorkerPool


class ProgramRun:
    """One run of a program; made by `Runtime.run_program`. Iterate once, then read the outcome:

        async with await runtime.run_program(program, request, limits=limits) as run:
            async for event in run:
                ...
            outcome = run.outcome

    However it ends, its generations end and its contexts are free within one step, before the iteration ends.

    Attributes:
        program: What runs.
        request: What it answers.
    """

    def __init__(
        self,
        program: Program,
        request: ProgramRequest,
        args: Mapping[str, Any],
        *,
        limits: ProgramLimits,
        engine: EngineClient,
        text: TextModel,
        pool: WorkerPool,
        open_context: Callable[[str | None], LiveContext],
        world: World,
        launch: Launch,
        turns: Turns,
        parent: Guard | None = None,
        tool_format: ToolFormat | None = None,
        journal: Journal | None = None,
        age_s: float = 0.0,
    ) -> None:
        """Starts it.

        Raises:
            EngineStopped: No engine is there.
        """
        self.program = program
        self.request = request
        self._guard = Guard(limits, parent, age_s)
        self._guard.place = turns.place() if parent is None else parent.place
        self._num_pages = 0
        if world.tools is not None:
            world = replace(world, tools=world.tools.within(self._guard))
        if journal is not None and parent is None:
            world = journaled(world)
            journal.follow(lambda: self._guard.failure is not None, self._guard.count_again)
        self._logs: list[str] = []
        self._events = RunEvents()
        self._error: BaseException | None = None
        self._outcome: ProgramOutcome | None = None
        self._is_closed = False
        self._scope = RunScope(
            engine,
            text,
            request,
            self._guard,
            open_context=open_context,
            events=self._events,
            source=program.source,
            world=world,
            tool_format=tool_format,
            trace=Trace(self._events.put if request.trace else None, lambda: self._guard.elapsed_s),
            launch=launch,
            turns=turns,
        )
        self._host = ScriptHost(pool, self._guard, self._on_print, journal)
        self._request = ScriptRequest(request, args)
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(lambda _: self._events.end())
        if parent is None:
            self._task.add_done_callback(lambda _: turns.end(self._scope.place, self._num_pages))
        self._guard.on_failure = self._task.cancel

    # -- for its reader ---------------------------------------------------------------------------------------------

    @property
    def usage(self) -> ProgramUsage:
        """What it used up to now."""
        usage = self._guard.usage
        if not self._task.done():
            usage.wall_s = self._guard.elapsed_s
        return usage

    @property
    def limits(self) -> ProgramLimits:
        """What it may use."""
        return self._guard.limits

    @property
    def num_contexts(self) -> int:
        """Contexts it holds now."""
        return self._scope.num_contexts

    @property
    def logs(self) -> str:
        """What it printed up to now."""
        return "".join(self._logs)

    @property
    def outcome(self) -> ProgramOutcome:
        """What came of it, once the iteration has ended; raises RuntimeError before."""
        if self._outcome is None:
            raise RuntimeError("the program has not ended, or it failed")
        return self._outcome

    def __aiter__(self) -> ProgramRun:
        return self

    async def __anext__(self) -> RunEvent:
        """Waits for the next event.

        Raises:
            ScriptError: The script raised.
            ScriptLimitExceeded: It reached a limit.
            ScriptCrashed: Its process died.
            RunCancelled: Somebody else closed the run.
            SandboxUnavailable: There is no process to run it in.
            EngineStopped: The engine is gone.
        """
        event = await self._events.next()
        if event is not None:
            return event
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    async def result(self) -> ProgramOutcome:
        """Waits for the outcome, whatever is told before it. Raises what the iteration raises, and closes the run."""
        self._events.discard()
        async with self:
            async for _ in self:
                pass
            return self.outcome

    def end(self, error: Exception) -> None:
        """Ends it with somebody else's error, whatever it is at, unless it has ended."""
        if not self._task.done():
            self._guard.fail(error)

    async def aclose(self) -> None:
        """Ends it if it still runs, and waits until all that it held is free. Idempotent."""
        if not self._is_closed and not self._task.done():
            self._is_closed = True
            self._guard.fail(RunCancelled("The program's run was closed before its end"))
            self._task.cancel()
        await asyncio.shield(asyncio.gather(self._task, return_exceptions=True))

    def on_end(self, callback: Callable[[], None]) -> None:
        """Calls back once the run has ended and all that it held is free."""
        self._task.add_done_callback(lambda _: callback())

    async def __aenter__(self) -> ProgramRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- the run itself ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        program, used = self.program, self._guard.usage
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": program.name or "",
            "wye.program.digest": program.digest,
            "wye.run_id": self.request.id,
        }
        with span(f"invoke_agent {program.name or program.digest[:12]}", attributes) as current:
            await self._run_script()
            current.set_attribute("gen_ai.usage.input_tokens", used.num_prompt_tokens)
            current.set_attribute("gen_ai.usage.output_tokens", used.num_completion_tokens)
            if self._error is not None:
                mark_failed(current, type(self._error).__name__)

    async def _run_script(self) -> None:
        guard = self._guard
        clock = asyncio.get_running_loop().call_later(guard.limits.wall_s - guard.elapsed_s, self._out_of_time)
        try:
            async with kv_limited(self._scope), self._scope.trace.sampling(self._scope.charged_kib_ms):
                exports_as = self.request.exports_as
                text = await self._host.run(self.program.source, self._request, ScriptLM(self._scope), exports_as)
            read = read_result(text, self._scope)
            if read.rest:
                guard.count_output(len(read.rest.encode("utf-8", "replace")))
                self._events.put(TextEmitted(read.rest, "end"))
            guard.usage.wall_s = guard.elapsed_s
            self._outcome = read.outcome(self._scope, self.logs)
        except asyncio.CancelledError:
            self._error = guard.failure or RunCancelled("The program's run was cancelled")
        except Exception as error:
            self._error = guard.failure or error
        finally:
            clock.cancel()
            guard.usage.wall_s = guard.elapsed_s
            self._num_pages = self._scope.num_pages
            guard.on_failure = None
            await _to_its_end(self._scope.release_all())

    def _out_of_time(self) -> None:
        self._guard.fail(ScriptLimitExceeded("wall_s", self._guard.elapsed_s, self._guard.limits.wall_s))

    def _on_print(self, text: str) -> None:
        if self._guard.failure is not None:
            return
        try:
            self._guard.count_log(len(text.encode("utf-8", "replace")))
        except Exception:  # the run has been ended by it
            return
        self._logs.append(text)
        self._events.put(LogWritten(text))


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Waits until work is done, whoever cancels the waiting: a run that is closed while it lets go still lets go."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    await task
