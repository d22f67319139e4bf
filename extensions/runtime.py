"""The gateway's one door to a model."""

from __future__ import annotations

from collections.abc import Sequence

from engine.client import EngineClient
from engine.request import EngineInfo, Pooling
from engine.stats import EngineStats
from engine.text.judging import Judgement
from engine.text.model import TextModel
from extensions.context import Context
from extensions.embedding import Embedding, embed
from extensions.exports import Imported, Recipe, import_context
from extensions.journal.engine import JournaledEngine
from extensions.journal.journal import Journal
from extensions.live_context import LiveContext
from extensions.parsing.formats import ToolFormat
from extensions.programs.guard import Guard
from extensions.programs.limits import ProgramLimits
from extensions.programs.program import Program
from extensions.programs.request import ProgramRequest
from extensions.programs.run import ProgramRun
from extensions.programs.service import Programs
from extensions.programs.world import World
from extensions.sandbox.pool import PoolOptions


class Runtime:
    """One engine and the text side of its model. Safe for many concurrent users of one event loop.

    It owns neither: whoever made the engine client closes it. It owns the processes that programs run in, which are
    started with the first program and ended by `aclose`.

    Args:
        engine: The engine's door.
        text: Tokenizer and chat template of the same model.
        pooling: Which hidden states make an embedding.
        limits: The most that a program may use, and what it may use if it asks for nothing.
        sandbox: How many processes run programs.
        tool_format: How the model writes calls of tools; its chat template tells if it is left out.
        judgement: The tokens with which it judges texts, if it was made for that.

    Attributes:
        engine: See above.
        text: See above.
        pooling: See above.
        judgement: See above.
        programs: Checks and runs programs.
    """

    def __init__(
        self,
        engine: EngineClient,
        text: TextModel,
        pooling: Pooling = Pooling.MEAN,
        *,
        limits: ProgramLimits | None = None,
        sandbox: PoolOptions | None = None,
        tool_format: ToolFormat | None = None,
        judgement: Judgement | None = None,
    ) -> None:
        self.engine = engine
        self.text = text
        self.pooling = pooling
        self.judgement = judgement
        self.programs = Programs(engine, text, limits=limits, pool=sandbox, tool_format=tool_format)

    def context(self, prompt_ids: Sequence[int], *, account: str = "", salt: str = "") -> Context:
        """Starts a token history. Costs nothing until it generates.

        Args:
            prompt_ids: The history so far.
            account: Opaque label that the engine's KV meter charges.
            salt: Prefix pages are shared only among contexts of the same salt.
        """
        return Context(self.engine, self.text, prompt_ids, account=account, salt=salt)

    async def embed(
        self, prompt_ids: Sequence[int], *, account: str = "", salt: str = "", adapter: str = "", priority: int = 0
    ) -> Embedding:
        """Embeds one prompt; see `extensions.embedding.embed`."""
        return await embed(
            self.engine, prompt_ids, self.pooling, account=account, salt=salt, adapter=adapter, priority=priority
        )

    def open_context(
        self, token_ids: Sequence[int] = (), *, account: str = "", salt: str = "", adapter: str = ""
    ) -> LiveContext:
        """Starts a history whose KV is kept between generations, until it is released. Costs nothing by itself.

        Args:
            token_ids: The history so far.
            account: Opaque label that the engine's KV meter charges.
            salt: Prefix pages are shared only among contexts of the same salt.
            adapter: Name of the adapter that computes and continues it; empty for the model alone.

        Raises:
            ValueError: An id is outside of the vocabulary.
        """
        return LiveContext(self.engine, self.text, token_ids, account=account, salt=salt, adapter=adapter)

    async def import_context(self, recipe: Recipe, export_id: str, *, account: str = "", salt: str = "") -> Imported:
        """A context that goes on from an export; see `extensions.exports.import_context`."""
        return await import_context(self.engine, self.text, recipe, export_id, account=account, salt=salt)

    async def check_program(self, source: str) -> Program:
        """Checks a script: size, syntax, header, types. A known one costs nothing; nothing of it runs.

        Raises:
            ProgramInvalid: It must not run; every problem with line and column.
            SandboxUnavailable: It cannot be checked now.
        """
        return await self.programs.check(source)

    async def run_program(
        self,
        program: Program,
        request: ProgramRequest,
        *,
        limits: ProgramLimits | None = None,
        account: str = "",
        salt: str = "",
        adapter: str = "",
        world: World | None = None,
        parent: Guard | None = None,
        journal: Journal | None = None,
        age_s: float = 0.0,
    ) -> ProgramRun:
        """Starts a program; close what it returns, however it ends:

            async with await runtime.run_program(program, request) as run:
                async for event in run:
                    ...
                outcome = run.outcome

        Args:
            program: From `check_program`.
            request: What it answers.
            limits: What it may use, from `programs.limits.narrowed`; the most there is if left out.
            account: Opaque label that the engine's KV meter charges.
            salt: Prefix pages are shared only among contexts of the same salt.
            adapter: Name of the adapter of contexts that name none; empty for the model alone.
            world: What it reaches beyond the model; nothing if left out.
            parent: Counts for the program that has it run, against whose limits it counts.
            journal: Where it is written down, so that it can be gone on with after a crash; None keeps none.
            age_s: Seconds since it was first admitted, of one that is gone on with.

        Raises:
            CapabilityMissing: The program says that it needs what is not there.
            ArgumentsInvalid: The request's arguments do not fit the program.
            SandboxUnavailable: There are no processes for scripts.
            EngineStopped: No engine is there.
        """

        engine = self.engine if journal is None else JournaledEngine(self.engine)

        def open_context(named: str | None = None) -> LiveContext:
            own = adapter if named is None else named
            return LiveContext(engine, self.text, account=account, salt=salt, adapter=own)

        return await self.programs.start(
            program,
            request,
            limits=limits,
            open_context=open_context,
            world=world,
            parent=parent,
            journal=journal,
            age_s=age_s,
        )

    async def aclose(self) -> None:
        """Ends all programs and their processes. Idempotent."""
        await self.programs.aclose()

    @property
    def info(self) -> EngineInfo:
        """What the engine is. Raises `EngineStopped` while none is connected."""
        return self.engine.info

    @property
    def stats(self) -> EngineStats:
        """The newest numbers the engine sent."""
        return self.engine.stats

    @property
    def is_ready(self) -> bool:
        """True while an engine is connected and takes requests."""
        return self.engine.is_ready
