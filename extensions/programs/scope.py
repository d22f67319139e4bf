"""What all handles of one run share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from engine.text.errors import InvalidText
from engine.text.model import TextModel
from extensions.journal.journal import source_of_output
from extensions.parsing.detection import format_of
from extensions.parsing.formats import ToolFormat
from extensions.parsing.plain import plain_text
from extensions.programs.events import RunEvents
from extensions.programs.faults import fault, invalid
from extensions.programs.guard import Guard
from extensions.programs.jsons import check_depth
from extensions.programs.planner import Feature, PathRecord, Plan, is_slower, plan
from extensions.programs.request import EventEmitted, ProgramRequest, TextEmitted
from extensions.programs.trace import Trace
from extensions.programs.transcript import ChatWriter
from extensions.programs.turns import Turns
from extensions.programs.world import World

if TYPE_CHECKING:
    from engine.client import EngineClient
    from extensions.live_context import LiveContext
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.run import ProgramRun
    from extensions.programs.stepping import ScriptGeneration

T = TypeVar("T")
Launch = Callable[..., Awaitable["ProgramRun"]]

SETTLE_S = 1.0
"""How long a run that has ended waits to be told what its contexts were charged."""
INLINE_CHARS = 8_192
"""Longer text is tokenised in a thread, so that other requests go on meanwhile."""


class RunScope:
    """One run: whom it works for, what it may use, what it holds, where its output goes.

    Attributes:
        engine: The engine's door.
        text: The model's text side.
        request: What it answers.
        guard: Counts what it uses.
        world: What it reaches beyond the model.
        trace: Told what the script does.
        place: The run's among those that compute; that of whoever started it, if somebody did.
        launch: Starts a child, see `Programs.start`.
        paths: Lanes it took.
        writer: Writes its messages.
        wants_logprobs: The script reads `mean_logprob`, so every generation reports log-probabilities.
        reads_steps: The script reads more of a step than its token.
        emitted: Text that was sent so far.
        tool_format: How the model writes calls of tools.
        foreign: Special tokens that were spelled in what tools and other servers said: in this run they are text.
        steppers: Generations that the script steps through and that have not ended.
        num_known: Steps that the script was given and has not said that it took, over all of them.
        last_finish: Text and finish reason of the generation that ended last.
    """

    def __init__(
        self,
        engine: EngineClient,
        text: TextModel,
        request: ProgramRequest,
        guard: Guard,
        *,
        open_context: Callable[[str | None], LiveContext],
        events: RunEvents,
        source: str,
        world: World,
        tool_format: ToolFormat | None,
        trace: Trace,
        launch: Launch,
        turns: Turns,
    ) -> None:
        self.engine = engine
        self.text = text
        self.request = request
        self.guard = guard
        self.world = world
        self.trace = trace
        self.launch = launch
        self.place = guard.place or turns.place()
        self.paths = PathRecord()
        self.wants_logprobs = "mean_logprob" in source
        self.reads_steps = any(name in source for name in ("candidates", "entropy", "omitted_mass", "getattr"))
        self.emitted: list[str] = []
        self.last_finish: tuple[str, str] = ("", "stop")
        self._turns = turns
        self._generating = asyncio.Semaphore(guard.limits.generations)
        self.foreign: set[str] = set()
        self.tool_format = tool_format or format_of(text.chat_template)
        self.writer = ChatWriter(
            text.chat_template,
            text.tokenizer,
            frozenset(engine.info.eos_token_ids),
            request.tools,
            foreign=self.foreign,
            tool_format=self.tool_format,
        )
        self.steppers: set[ScriptGeneration] = set()
        self.num_known = 0
        self._open_context = open_context
        self._events = events
        self._contexts: set[ScriptContext] = set()
        self._account = ""
        self._num_kept = 0
        self._beside: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Something generates inside the `with`; it waits before that while too much does, of this run or of all."""
        turn = self._turns.turn(self.place, self._account, count_pages=lambda: self.num_pages, give_up=self._give_up)
        async with self._generating, turn:
            yield

    def note_lost(self) -> None:
        """KV was gone that the run had when it last computed."""
        self._turns.lost(self.place)

    @property
    def num_pages(self) -> int:
        """Pages of all its contexts, as if each had its own."""
        if not self.engine.is_ready:
            return 0
        size = self.engine.info.page_size
        return sum(-(-context.length // size) for context in self._contexts)

    async def _give_up(self) -> None:
        await asyncio.gather(*(context.give_up() for context in list(self._contexts)))

    def open_context(self, adapter: str | None = None) -> LiveContext:
        """A new context, not yet counted; with that adapter, or the one of the request if none is named."""
        return self._open_context(adapter)

    def keep(self, context: ScriptContext) -> int:
        """Releases a context with the run, if the script does not before. Returns which of the run's contexts it is."""
        self._contexts.add(context)
        self._account = context.account
        self._num_kept += 1
        return self._num_kept

    def drop(self, context: ScriptContext) -> None:
        """A context that was released."""
        if context in self._contexts:
            self._contexts.discard(context)
            self.guard.close_context()

    async def release_all(self) -> None:
        """Ends what the script left unfinished, and lets go of every context."""
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        for stepper in list(self.steppers):
            await stepper.aclose()
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.gather(*(context.settle() for context in self._contexts))
        except TimeoutError:
            pass  # what is not told in time is charged to the account, but not shown in the answer
        finally:
            for context in list(self._contexts):
                context.let_go()

    async def held_kv(self) -> tuple[int, int]:
        """Bytes that its contexts are charged for now, and KiB times milliseconds in all."""
        found = await asyncio.gather(*(context.held_kv() for context in list(self._contexts)))
        return sum(num_bytes for num_bytes, _ in found), sum(kib_ms for _, kib_ms in found)

    async def charged_kib_ms(self) -> int:
        """What the run's KV was charged up to now."""
        held = list(self._contexts)
        await asyncio.gather(*(context.settle() for context in held))
        return self.guard.usage.kv_kib_ms + sum(context.kv_kib_ms for context in held)

    def beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begins work that goes on beside the script; it ends with the run at the latest."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._beside.discard(task)
        if not task.cancelled():
            task.exception()  # nobody has to ask for it

    def note_foreign(self, text: str) -> None:
        """Remembers which special tokens a stranger spells in a text."""
        self.foreign |= plain_text(self.text.tokenizer).found(text)

    @property
    def num_contexts(self) -> int:
        """Contexts it holds."""
        return len(self._contexts)

    def planned(self, *features: Feature) -> Plan:
        """The lane for work that uses these features; taken down for the answer.

        Raises:
            RuntimeError: The request does not allow a lane that slow (`capability_missing`).
        """
        chosen = plan(features)
        slowest = self.request.strict_path
        if slowest is not None and is_slower(chosen.lane, slowest):
            message = f"{chosen.reason} needs the {chosen.lane} lane, and strict_path allows {slowest} at the slowest"
            raise fault("capability_missing", message)
        self.paths.note(chosen)
        return chosen

    async def encode(self, text: str, name: str = "text", *, add_special: bool = False) -> list[int]:
        """Token ids of a text.

        Raises:
            ValueError: It is no valid text, or longer than any history can be (`invalid_argument`).
        """
        limit_tokens = self.engine.info.limit_tokens
        if self.text.tokenizer.cannot_fit(text, limit_tokens):
            raise invalid(f"{name} has more than the {limit_tokens} tokens that any history can have")
        try:
            plain = plain_text(self.text.tokenizer)
            cut = plain.cut(text, self.foreign) if self.foreign else text
            if len(text) <= INLINE_CHARS:
                return plain.encode(cut, add_special=add_special)
            return await asyncio.to_thread(plain.encode, cut, add_special=add_special)
        except InvalidText as error:
            raise invalid(f"{name}: {error.message}") from None

    async def emit(self, text: str) -> None:
        """Sends text of the answer; waits while the client is slow to read."""
        if text:
            await self._events.send(self._counted(text))

    @property
    def has_room(self) -> bool:
        """False while the client is slow to read."""
        return self._events.has_room

    def put(self, text: str) -> None:
        """Sends text of the answer at once, however slow the client is to read."""
        if text:
            self._events.put(self._counted(text))

    def _counted(self, text: str) -> TextEmitted:
        self.guard.count_output(len(text.encode("utf-8", "replace")))
        self.emitted.append(text)
        return TextEmitted(text, source_of_output())

    async def emit_event(self, kind: str, data: Any) -> None:
        """Sends an event of the script's own.

        Raises:
            ValueError: The data is no JSON, or nested too deep (`invalid_argument`).
        """
        check_depth(data, "data")
        try:
            encoded = json.dumps(data, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise invalid(f"data must be a JSON value: {error}") from None
        self.guard.count_output(len(kind) + len(encoded))
        await self._events.send(EventEmitted(kind, json.loads(encoded), source_of_output()))
