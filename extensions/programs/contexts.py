"""A script's handle on a token history; see `Context` in the stubs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from engine.contexts.commands import ContextInfo as EngineContextInfo
from engine.request import TokenLogprob as EngineLogprob
from extensions.journal.effects import effect
from extensions.programs.answers import AnswerWatch, forced_watch, free_watch
from extensions.programs.drafting import ScriptDrafting
from extensions.programs.faults import fault, invalid
from extensions.programs.generating import Completion, GenerateFields, TokenLogprob, reported, run_generation
from extensions.programs.history import History, Place
from extensions.programs.leases import ScriptLease, retain
from extensions.programs.options import read_logprobs, token_ids
from extensions.programs.planner import Feature, Lane, plan
from extensions.programs.prefixes import export
from extensions.programs.scope import RunScope
from extensions.programs.stepping import (
    Choice,
    ScriptDistribution,
    ScriptGeneration,
    chosen,
    read_mass,
    read_top,
)
from extensions.programs.tool_constraint import resolved
from extensions.programs.transcript import read_messages

if TYPE_CHECKING:
    from extensions.held_stream import HeldStream

Content = str | Sequence[int] | Sequence[Mapping[str, Any]]

MAX_FORKS = 4096
"""Copies that one call makes at most."""


class ContextInfo(NamedTuple):
    """See `ContextInfo` in the stubs."""

    length: int
    pending: int
    bytes: int
    shared_bytes: int
    residency: Literal["device", "host", "tokens"]
    recomputable: bool


class ScriptMark:
    """A place in a history, to come back to.

    Attributes:
        scope: The run that it belongs to.
        place: The place.
    """

    def __init__(self, scope: RunScope, place: Place) -> None:
        self.scope = scope
        self.place = place


class ScriptContext:
    """One context of a run."""

    def __init__(self, scope: RunScope, history: History, parent: int | None = None) -> None:
        self._scope = scope
        self._history = history
        self._number = scope.keep(self)
        self._drafting: ScriptDrafting | None = None
        scope.trace.note("context.open", context=self._number, parent=parent, tokens=history.live.length)

    @property
    def scope(self) -> RunScope:
        """The run that it belongs to."""
        return self._scope

    @property
    def account(self) -> str:
        """Who pays for it."""
        return self._history.live.account

    @property
    def history(self) -> History:
        """Its history."""
        return self._history

    # -- what a script may call -------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """Tokens of the history."""
        return self._history.live.length

    async def append(self, content: Content) -> None:
        """Adds messages, text or token ids."""
        if isinstance(content, str):
            await self._history.append_text(content)
        elif _are_messages(content):
            await self._history.append_messages(read_messages(content))
        else:
            self._history.append_ids(token_ids(content, "content"))

    async def prefill(self) -> None:
        """Computes what is pending."""
        self._history.charge()
        self._scope.planned()
        await self._history.live.prefill()

    async def fork(self, n: int | None = None) -> ScriptContext | list[ScriptContext]:
        """One copy, or a list of n."""
        count = 1 if n is None else n
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_FORKS:
            raise invalid(f"n must be a whole number from 1 to {MAX_FORKS}")
        copies = [ScriptContext(self._scope, history, self._number) for history in self._history.fork(count)]
        return copies[0] if n is None else copies

    async def mark(self) -> ScriptMark:
        """Remembers the end of the history."""
        return ScriptMark(self._scope, self._history.place())

    async def rewind(self, mark: ScriptMark) -> None:
        """Goes back to a mark."""
        if not isinstance(mark, ScriptMark) or mark.scope is not self._scope:
            raise invalid("mark must be what ctx.mark() returned")
        self._history.rewind(mark.place)

    async def truncate(self, length: int) -> None:
        """Keeps the first tokens."""
        _check_integers(length=length)
        self._history.truncate(length)

    async def hide(self, start: int, stop: int) -> None:
        """Lets later tokens not attend to a span."""
        _check_integers(start=start, stop=stop)
        self._history.hide(start, stop)

    async def drop(self, start: int, stop: int) -> None:
        """Hides a span and frees its memory."""
        _check_integers(start=start, stop=stop)
        self._history.drop(start, stop)

    async def forget(self, start: int, stop: int) -> None:
        """Takes tokens out as if they had never been there."""
        _check_integers(start=start, stop=stop)
        self._history.forget(start, stop)

    async def tokens(self, start: int = 0, stop: int | None = None) -> list[int]:
        """Tokens of the history."""
        length = self._history.live.length
        end = length if stop is None else stop
        _check_integers(start=start, stop=end)
        if not 0 <= start <= end <= length:
            raise invalid(f"start and stop must lie within 0 and {length}, got {start} to {end}")
        return self._history.live.token_ids[start:end]

    async def info(self) -> ContextInfo:
        """What it is and costs."""
        live = self._history.live
        info = await effect("info", None, live.info, pack=msgspec.to_builtins, unpack=_info_of)
        page_bytes = self._scope.engine.info.page_bytes
        return ContextInfo(
            length=live.length,
            pending=max(live.length - info.num_computed, 0),
            bytes=info.num_pages * page_bytes,
            shared_bytes=info.num_shared_pages * page_bytes,
            residency=info.residency,
            recomputable=info.recomputable,
        )

    async def retain(
        self, *, ttl_s: float, max_bytes: int, value: float = 0.5, on_pressure: str = "tokens"
    ) -> ScriptLease:
        """Wishes to keep it while nobody computes on it."""
        return await retain(self._history.live, ttl_s, max_bytes, value, on_pressure)

    async def export(
        self,
        name: str,
        *,
        ttl_s: float | None = None,
        visibility: str = "tenant",
        allow: Sequence[str] = (),
    ) -> str:
        """Keeps it beyond the run."""
        await self.prefill()
        return await export(self._scope, self._history, name, ttl_s, visibility, allow)

    async def release(self) -> None:
        """Frees it."""
        await self.settle()
        self.let_go()

    async def generate(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Any = None,
        sampler: Any = None,
        drafter: Any = None,
        verify: Any = None,
        logprobs: int | None = None,
        emit: bool = False,
    ) -> Completion:
        """Generates until a stop."""
        fields = {**locals(), "constrain": await resolved(constrain, self._scope)}
        asked = GenerateFields.read(fields, self._scope, logprobs=logprobs, emit=emit)
        return await self.answer(asked, lambda history: self._watch(asked, history))

    async def drafting(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Any = None,
        sampler: Any = None,
        verify: Any = None,
        logprobs: int | None = None,
        emit: bool = False,
    ) -> ScriptDrafting:
        """Begins to generate with guesses of the script's."""
        fields = {**locals(), "constrain": await resolved(constrain, self._scope)}
        asked = GenerateFields.read(fields, self._scope, logprobs=logprobs, emit=emit).guessed()
        drafting = ScriptDrafting(self._scope)

        def watch(history: Sequence[int]) -> AnswerWatch | None:
            drafting.history = list(history)
            return self._watch(asked, history)

        self._drafting = drafting
        await drafting.begin(self.answer(asked, watch, on_wanted=drafting.note))
        return drafting

    async def generation(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stop_token_ids: Sequence[int] | None = None,
        template_stops: bool = True,
        constrain: Any = None,
        top: int = 64,
        need_mass: float = 0.0,
    ) -> ScriptGeneration:
        """Begins a generation that the script steps through."""
        fields = {**locals(), "constrain": await resolved(constrain, self._scope)}
        scope, live = self._scope, self._history.live
        asked = GenerateFields.read(fields, scope, logprobs=None, emit=False)
        num_top = read_top(top, scope.engine.info.vocab_size, allows_all=False)
        mass = read_mass(need_mass)
        async with self._history.answering() as num_pending:
            scope.planned(Feature.STEPS)
            options = asked.options(scope, live.length, may_report=False)
            if not scope.reads_steps:
                num_top, mass = 0, 0.0
            stepped = await live.stepped(options, top=num_top, need_mass=mass)
            scope.guard.usage.num_generations += 1
        start = live.length
        scope.trace.note("generate.start", context=self._number, lane="host")

        def settle() -> None:
            scope.trace.note("generate.end", context=self._number, tokens=live.length - start)
            self._history.settle()

        return ScriptGeneration(scope, stepped, settle, num_pending)

    async def next(self, *, top: int | Literal["all"] = 64, need_mass: float = 0.0) -> ScriptDistribution:
        """The distribution at the end of the history."""
        num_top = read_top(top, self._scope.engine.info.vocab_size, allows_all=True)
        mass = read_mass(need_mass)
        async with self._history.looking():
            self._scope.planned(Feature.DISTRIBUTION)
            distribution = await self._history.live.next(top=num_top, need_mass=mass)
        return ScriptDistribution(self._scope, distribution, is_whole=num_top == -1)

    async def score(
        self, continuations: Sequence[str] | Sequence[Sequence[int]], *, top: int | None = None
    ) -> list[list[float]] | list[list[TokenLogprob]]:
        """Log-probabilities of the tokens of each text if it came next, or all that is known of them."""
        num_top = read_logprobs(top, "top")
        all_ids = await self._read_continuations(continuations)
        found = await self._examined(all_ids, num_top or 0)
        if num_top is None:
            return [[one.logprob for one in each] for each in found]
        return [
            [reported(self._scope, token, one) for token, one in zip(ids, each, strict=True)]
            for ids, each in zip(all_ids, found, strict=True)
        ]

    async def choose(self, continuations: Sequence[str] | Sequence[Sequence[int]]) -> Choice:
        """Which of the texts the model expects most."""
        if not isinstance(continuations, Sequence) or not continuations:
            raise invalid("continuations must be a list of texts, at least one")
        found = await self._examined(await self._read_continuations(continuations), 0)
        return chosen([[one.logprob for one in each] for each in found])

    # -- what the run does ------------------------------------------------------------------------------------------

    @property
    def left_behind(self) -> ScriptDrafting | None:
        """A generation on it that waits for a guess of the script, which has turned to something else: it raised."""
        drafting = self._drafting
        return drafting if drafting is not None and drafting.is_waiting else None

    async def offer(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Tells the model of tools that it may call, as its chat template does."""
        await self._history.offer(tools)

    async def answer(
        self,
        asked: GenerateFields,
        watch: Callable[[Sequence[int]], AnswerWatch | None],
        *,
        shows_content: bool = False,
        on_wanted: Callable[[HeldStream, int], None] | None = None,
    ) -> Completion:
        """Generates until a stop.

        Args:
            asked: How.
            watch: Made for the history that is answered, finds the calls in the answer.
            shows_content: See `run_generation`.
            on_wanted: See `GenerateOptions`.
        """
        lane = plan(asked.asked.features).lane
        async with self._history.answering() as num_pending:
            with self._noted(lane):
                live = self._history.live
                watching = watch(live.token_ids)
                return await run_generation(
                    self._scope,
                    live,
                    asked,
                    num_pending,
                    watch=watching,
                    shows_content=shows_content,
                    on_wanted=on_wanted,
                )

    def _watch(self, asked: GenerateFields, history: Sequence[int]) -> AnswerWatch | None:
        """What finds calls in an answer: only where there are tools that it could call."""
        tool_format = self._scope.tool_format
        if asked.asked.constraint is not None:
            return forced_watch(tool_format, asked.asked.tools) if asked.asked.tools else None
        names = self._history.tool_names
        return free_watch(self._scope.text, tool_format, names, history) if names else None

    async def held_kv(self) -> tuple[int, int]:
        """Bytes that it is charged for now, and what it was charged in all, in KiB times milliseconds."""
        live = self._history.live
        if live.is_released:
            return 0, 0
        num_bytes, kib_ms = await live.charge()
        return (0, 0) if live.is_released else (num_bytes, kib_ms)

    async def settle(self) -> None:
        """Learns what it was charged up to now."""
        if not self._history.live.is_released:
            await self._history.live.update_charge()

    async def give_up(self) -> None:
        """Lets go of its KV, but not of its history, unless something computes on it or wishes to keep it."""
        await self._history.live.give_up()

    def let_go(self) -> None:
        """Frees it. Idempotent."""
        live = self._history.live
        if not live.is_released:
            self._scope.guard.count_kv(live.kv_kib_ms)
            self._scope.trace.note("context.close", context=self._number, tokens=live.length)
        live.release()
        self._scope.drop(self)

    @property
    def kv_kib_ms(self) -> int:
        """What it was charged, as far as the engine has told; 0 once it is free, as the run has it then."""
        live = self._history.live
        return 0 if live.is_released else live.kv_kib_ms

    @contextlib.contextmanager
    def _noted(self, lane: Lane) -> Iterator[None]:
        """Tells of the generation that its body is."""
        live, trace = self._history.live, self._scope.trace
        start = live.length
        trace.note("generate.start", context=self._number, lane=lane)
        try:
            yield
        finally:
            trace.note("generate.end", context=self._number, tokens=max(live.length - start, 0))

    async def begin(self, content: Content) -> None:
        """The first of its history."""
        if isinstance(content, str):
            await self._history.append_text(content, is_first=True)
        elif len(content):
            await self.append(content)

    async def _examined(self, all_ids: Sequence[Sequence[int]], top: int) -> list[list[EngineLogprob]]:
        async with self._history.branch() as branch:
            self._scope.planned()
            self._scope.guard.count_prefill(sum(map(len, all_ids)))
            return await branch.examine(all_ids, top)

    async def _read_continuations(self, given: Sequence[str] | Sequence[Sequence[int]]) -> list[list[int]]:
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
            raise invalid("continuations must be a list of texts or of lists of token ids")
        most = self._scope.guard.limits.contexts
        if len(given) > most:
            raise fault("limit_exceeded", f"{len(given)} continuations at once, at most {most} are allowed")
        found = []
        for at, one in enumerate(given):
            name = f"continuations[{at}]"
            found.append(await self._scope.encode(one, name) if isinstance(one, str) else token_ids(one, name))
        return found


def _are_messages(content: object) -> bool:
    if isinstance(content, Mapping | bytes) or not isinstance(content, Sequence):
        raise invalid("content must be text, a list of token ids or a list of messages")
    return bool(content) and isinstance(content[0], Mapping)


def _info_of(data: Any) -> EngineContextInfo:
    return msgspec.convert(data, EngineContextInfo)


def _check_integers(**values: object) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"{name} must be a whole number")
