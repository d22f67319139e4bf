"""Programs of one gateway worker: checked, admitted, run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from engine.client import EngineClient
from engine.text.model import TextModel
from extensions.journal.journal import Journal
from extensions.parsing.formats import ToolFormat
from extensions.programs.arguments import checked_arguments
from extensions.programs.capabilities import capabilities, check_needs
from extensions.programs.checking import ProgramChecker
from extensions.programs.guard import Guard
from extensions.programs.limits import ProgramLimits
from extensions.programs.program import Program
from extensions.programs.request import ProgramRequest
from extensions.programs.run import ProgramRun
from extensions.programs.turns import Turns
from extensions.programs.world import World
from extensions.sandbox.pool import PoolOptions, WorkerPool

if TYPE_CHECKING:
    from extensions.live_context import LiveContext


class Programs:
    """Everything that programs need beside the engine. Costs nothing before the first one.

    Args:
        engine: Where they compute.
        text: The model's text side.
        limits: The most that any run may use, and what it may use if it asks for nothing.
        pool: How many processes there are.
        tool_format: How the model writes calls of tools; its chat template tells if it is left out.

    Attributes:
        limits: See above.
        pool: Where scripts run.
        turns: Who may compute while memory is short.
        runs: Those that have not ended.
    """

    def __init__(
        self,
        engine: EngineClient,
        text: TextModel,
        *,
        limits: ProgramLimits | None = None,
        pool: PoolOptions | None = None,
        tool_format: ToolFormat | None = None,
    ) -> None:
        self.limits = limits or ProgramLimits()
        self.pool = WorkerPool(pool)
        self.turns = Turns(engine)
        self.runs: set[ProgramRun] = set()
        self._engine = engine
        self._text = text
        self._tool_format = tool_format
        self._checker = ProgramChecker(self.pool)

    async def check(self, source: str) -> Program:
        """Checks a script; a known one costs nothing.

        Raises:
            ProgramInvalid: It must not run; every problem with line and column.
            SandboxUnavailable: It cannot be checked now.
        """
        return await self._checker.check(source, self.limits.source_bytes)

    async def start(
        self,
        program: Program,
        request: ProgramRequest,
        *,
        limits: ProgramLimits | None,
        open_context: Callable[[str | None], LiveContext],
        world: World | None = None,
        parent: Guard | None = None,
        journal: Journal | None = None,
        age_s: float = 0.0,
    ) -> ProgramRun:
        """Starts a run.

        Args:
            program: A checked script.
            request: What it answers.
            limits: What it may use; see `ProgramLimits.narrowed`.
            open_context: Makes an empty context on the account that pays, with the adapter of that name.
            world: What it reaches beyond the model; nothing if left out.
            parent: Counts for the run that starts this one, and pays.
            journal: Where it is written down, so that it can be gone on with; None keeps none.
            age_s: Seconds since admission, of a run that is gone on with.

        Raises:
            CapabilityMissing: The program says that it needs what is not there.
            ArgumentsInvalid: The arguments do not fit the program.
            SandboxUnavailable: There are no processes for scripts.
            EngineStopped: No engine is there.
        """
        world = world or World()
        if program.needs:
            check_needs(program.needs, capabilities(self._engine.info, world))
        args = checked_arguments(program.params, request.args)
        await self.pool.start()
        run = ProgramRun(
            program,
            request,
            args,
            limits=limits or self.limits,
            engine=self._engine,
            text=self._text,
            tool_format=self._tool_format,
            pool=self.pool,
            open_context=open_context,
            world=world,
            turns=self.turns,
            launch=partial(self.start, open_context=open_context),
            parent=parent,
            journal=journal,
            age_s=age_s,
        )
        self.runs.add(run)
        run.on_end(lambda: self.runs.discard(run))
        return run

    async def aclose(self) -> None:
        """Ends all runs and all processes. Idempotent."""
        for run in list(self.runs):
            await run.aclose()
        await self.pool.aclose()
