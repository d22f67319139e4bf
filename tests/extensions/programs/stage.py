"""Programs over a scripted engine, and the promise that nothing is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine.build import build_loop
from engine.client import EngineClient
from engine.config import EngineConfig, KVConfig, ParallelConfig
from engine.engine import open_engine
from engine.text.model import TextModel
from extensions.programs.limits import ProgramLimits
from extensions.programs.program import Program, digest_of
from extensions.programs.request import LogWritten, ProgramOutcome, ProgramRequest, RunEvent
from extensions.programs.run import ProgramRun
from extensions.programs.world import World
from extensions.runtime import Runtime
from extensions.sandbox.pool import PoolOptions
from tests.fakes import Script, ScriptedEngine, says, text_model

MESSAGES = ({"role": "user", "content": "Name a river."},)
ANSWER = "the Loire, I think"


class Stage:
    """Runs sources.

    Attributes:
        engine: What they compute on.
        text: Its text side.
        runtime: Runs them.
        programs: Its service.
        events: All but logs, of the last run.
        printed: Logs of the last run.
        world: What programs reach beyond the model.
    """

    def __init__(self, engine: EngineClient, text: TextModel, *, max_workers: int = 4) -> None:
        self.engine = engine
        self.text = text
        self.runtime = Runtime(
            engine, text, sandbox=PoolOptions(min_workers=1, max_workers=max_workers, grace_s=0.2, checkout_s=60)
        )
        self.programs = self.runtime.programs
        self.events: list[RunEvent] = []
        self.printed = ""
        self.world = World()

    async def start(
        self, source: str, *, limits: Mapping[str, Any] | None = None, checks: bool = True, **request: Any
    ) -> ProgramRun:
        """Starts a source, which may be one that no check would let pass."""
        program = (
            await self.runtime.check_program(source) if checks else Program(source=source, digest=digest_of(source))
        )
        asked = ProgramRequest(**{"messages": MESSAGES, "model": "tiny", "id": "run-1", **request})
        narrowed: ProgramLimits = self.programs.limits.narrowed(limits or {})
        return await self.runtime.run_program(program, asked, limits=narrowed, world=self.world)

    async def run(self, source: str, *, limits: Mapping[str, Any] | None = None, **request: Any) -> ProgramOutcome:
        """Runs a source to its end; raises what the run raises."""
        self.events, self.printed = [], ""
        try:
            async with await self.start(source, limits=limits, **request) as run:
                async for event in run:
                    if isinstance(event, LogWritten):
                        self.printed += event.text
                    else:
                        self.events.append(event)
                self.check_rest()
                return run.outcome
        finally:
            self.check_rest()

    async def value(self, body: str, **request: Any) -> Any:
        """Runs a `main` of these lines and returns the result that is neither text nor message."""
        return (await self.run(main_of(body), **request)).result

    async def run_beside(self, body: str) -> ProgramOutcome:
        """Runs a `main` of these lines while other runs go on."""
        return await (await self.start(main_of(body))).result()

    def check_rest(self) -> None:
        """Nothing is left of runs that have ended."""
        assert self.programs.pool.num_running == 0
        if isinstance(self.engine, ScriptedEngine):
            assert self.engine.contexts.histories == {}
            assert self.engine.streams == {}

    async def aclose(self) -> None:
        """Ends the stage; no task may be left."""
        await self.runtime.aclose()
        self.check_rest()
        assert self.programs.runs == set()
        assert [task for task in asyncio.all_tasks() if "finish" in repr(task.get_coro())] == []


async def until(condition: Callable[[], bool], timeout_s: float = 200.0) -> None:
    """Waits for something to become true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def main_of(body: str) -> str:
    """A program whose `main` has these lines."""
    lines = body.strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "async def main(request, lm):\n" + "\n".join("    " + line[indent:] for line in lines) + "\n"


@asynccontextmanager
async def real_stage(model: Path) -> AsyncIterator[Stage]:
    """A stage with an engine of its own, which checks after each step what it holds."""
    config = EngineConfig(
        model=str(model),
        device="cpu",
        weights="float32",
        check_integrity=True,
        kv=KVConfig(num_pages=256),
        parallel=ParallelConfig(num_threads=1),
    )
    async with open_engine(build_loop(config)) as engine:
        stage = Stage(engine, TextModel.load(model))
        yield stage
        await stage.aclose()


def scripted_stage(script: Script | None = None, *, max_workers: int = 4) -> Stage:
    """A stage whose model gives the same answer to everything unless told otherwise."""
    text = text_model()
    return Stage(ScriptedEngine(text, script or says(text, ANSWER)), text, max_workers=max_workers)
