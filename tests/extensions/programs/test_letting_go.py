"""Runs that are closed while they let go of what they held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from extensions.programs.world import World
from extensions.tools.catalog import ToolResult
from tests.extensions.journal.lives import Tools
from tests.extensions.programs.stage import Stage, main_of, until
from tests.fakes import ScriptedEngine


class Stubborn(Tools):
    """A tool that takes a while to stop.

    Attributes:
        is_stopping: It was told to.
        may_stop: Set when it can.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_stopping = False
        self.may_stop = asyncio.Event()

    def within(self, guard: object) -> Stubborn:
        return self

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.is_stopping = True
            await self.may_stop.wait()
        raise AssertionError(name)


async def test_a_run_that_is_closed_while_it_lets_go_lets_go_of_all(stage: Stage) -> None:
    tools = Stubborn()
    stage.world = World(tools=tools)
    run = await stage.start(
        main_of("""
            ctx = await lm.context("x")
            await ctx.prefill()
            gen = await (await ctx.fork()).generation(max_tokens=9)
            await gen.step()
            await lm.start_tool("look", {"n": 1})
            await lm.sleep(0.01)
            return "done"
        """)
    )
    await until(lambda: tools.is_stopping)
    closing = [asyncio.ensure_future(run.aclose()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert run.num_contexts == 2
    tools.may_stop.set()
    await asyncio.gather(*closing)
    assert run.num_contexts == 0
    assert isinstance(stage.engine, ScriptedEngine)
    assert stage.engine.contexts.histories == {}
    assert stage.engine.streams == {}
