"""Runs that are killed whenever a test says so, and gone on with from what they had written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.request import GenerateRequest
from extensions.journal.entries import Entry, packed, unpacked
from extensions.journal.gate import Gate
from extensions.journal.journal import Journal
from extensions.journal.replay import Replay
from extensions.programs.guard import Guard
from extensions.programs.request import ProgramOutcome, ProgramRequest
from extensions.programs.world import World
from extensions.tools.catalog import Effect, HttpReply, ToolInfo, ToolResult
from extensions.tools.errors import ToolNotFound
from tests.extensions.programs.stage import Stage, main_of
from tests.fakes import Action, text_model

TEXT = text_model()


class Killed(Exception):
    """The process that ran it is gone."""


class Paper:
    """Implements `extensions.journal.journal.Sink`: what was written before the run is killed.

    Args:
        entries: Of earlier lives.
        most: So many more are written, then the run is killed; None to let it live.
    """

    def __init__(self, entries: Sequence[Entry] = (), most: int | None = None) -> None:
        self.name = "run-1"
        self.gate = Gate()
        self.entries = list(entries)
        self.kill: Callable[[], None] = lambda: None
        self._most = None if most is None else len(self.entries) + most
        self._loop = asyncio.get_running_loop()

    @property
    def is_torn(self) -> bool:
        """The run is as good as dead."""
        return self._most is not None and len(self.entries) >= self._most

    def put(self, entry: Entry) -> None:
        if not self.is_torn:
            self.entries += unpacked([packed(entry)])
        if self.is_torn:
            self._loop.call_soon_threadsafe(self.kill)

    async def commit(self) -> None:
        if self.is_torn:
            await asyncio.get_running_loop().create_future()


class Tools:
    """Implements `extensions.tools.catalog.ToolCatalog`: tools that count.

    Attributes:
        calls: Of each, by name.
    """

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self._effects: dict[str, Effect] = {"look": "pure", "note": "idempotent", "pay": "once"}

    def within(self, guard: Guard) -> Tools:
        return self

    async def names(self) -> list[ToolInfo]:
        return [await self.find(name) for name in self._effects]

    async def find(self, name: str) -> ToolInfo:
        if name not in self._effects:
            raise ToolNotFound(f"there is no {name}", name)
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        return ToolInfo(name=name, description=name, parameters=parameters, effect=self._effects[name], kind="http")

    async def call(self, name: str, arguments: Mapping[str, Any], key: str | None = None) -> ToolResult:
        await asyncio.sleep(0.002 * (3 - int(arguments.get("n", 0)) % 3))
        self.calls[name] = self.calls.get(name, 0) + 1
        value = {"of": name, **arguments}
        return ToolResult(text=str(value), json=value, has_json=True)

    async def mcp_tools(self, server: str) -> list[ToolInfo]:
        raise AssertionError(server)

    async def mcp_call(
        self, server: str, tool: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> ToolResult:
        raise AssertionError(server)

    async def fetch(self, method: str, url: str, **fields: Any) -> HttpReply:
        self.calls[method] = self.calls.get(method, 0) + 1
        return HttpReply(status=200, body="fetched")


def says_by_turn(*answers: str) -> Callable[[GenerateRequest, int], Sequence[Action]]:
    """A model that answers by how many answers of tools it has been told."""

    def script(request: GenerateRequest, index: int) -> Sequence[Action]:
        told = "".join(TEXT.tokenizer.token_text(one) for one in request.prompt_ids).count("<|begin|>tool")
        ids = TEXT.tokenizer.encode(answers[min(told, len(answers) - 1)], add_special=False)
        return [ids[at : at + 3] for at in range(0, len(ids), 3)]

    return script


class Lives:
    """One run and its lives.

    Attributes:
        source: The program.
        stage: Where they are lived.
        tools: What it calls; they outlive it.
        entries: Written so far.
    """

    def __init__(self, body: str, stage: Stage) -> None:
        self.source = main_of(body)
        self.tools = Tools()
        self.stage = stage
        self.entries: list[Entry] = []

    @classmethod
    def again(cls, other: Lives) -> Lives:
        """Another run of the same program, on the same stage."""
        lives = cls.__new__(cls)
        lives.source, lives.stage, lives.tools, lives.entries = other.source, other.stage, Tools(), []
        return lives

    async def live(self, most: int | None = None) -> ProgramOutcome | None:
        """Lives until so many more entries are written, or to the end, whose outcome is returned."""
        paper = Paper(self.entries, most)
        journal = Journal(paper, Replay(self.entries))
        stage = self.stage
        program = await stage.runtime.check_program(self.source)
        request = ProgramRequest(messages=({"role": "user", "content": "Pay."},), model="tiny", id="run-1")
        run = await stage.runtime.run_program(program, request, world=World(tools=self.tools), journal=journal)
        paper.kill = lambda: run.end(Killed())
        try:
            async for _ in run:
                pass
            return run.outcome
        except Killed:
            return None
        finally:
            await run.aclose()
            self.entries = paper.entries
            stage.check_rest()
