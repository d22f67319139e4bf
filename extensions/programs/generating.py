"""One generation of a script, from its arguments to a `Completion`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from engine.errors import ContextTooLong, EngineStopped
from engine.request import DrafterSpec, Probe, Probes
from engine.request import TokenLogprob as EngineLogprob
from extensions.output import GenerateOptions, GenerationStep, TokenText
from extensions.programs.answers import AnswerWatch, ToolCall
from extensions.programs.options import Asked, flag, read_logprobs, read_options
from extensions.programs.planner import Lane
from extensions.programs.scope import RunScope

if TYPE_CHECKING:
    from extensions.held_stream import HeldStream
    from extensions.live_context import LiveContext


class Usage(NamedTuple):
    """See `Usage` in the stubs."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Candidate(NamedTuple):
    """See `Candidate` in the stubs."""

    token: int
    text: str
    logprob: float


class TokenLogprob(NamedTuple):
    """See `TokenLogprob` in the stubs."""

    token: int
    text: str
    logprob: float
    top: list[Candidate]


class Completion:
    """What a generation made; see the stubs."""

    def __init__(
        self,
        *,
        text: str,
        tokens: list[int],
        finish_reason: Literal["stop", "length"],
        logprobs: Sequence[TokenText],
        shows_logprobs: bool,
        usage: Usage,
        exec_path: Lane,
        probes: dict[str, list[Probe]],
        tool_calls: Sequence[ToolCall] = (),
    ) -> None:
        self.text = text
        self.tokens = tokens
        self.finish_reason = finish_reason
        self.mean_logprob = sum(one.logprob or 0.0 for one in logprobs) / max(len(logprobs), 1)
        self.logprobs = [_shown(one) for one in logprobs] if shows_logprobs else []
        self.usage = usage
        self.exec_path = exec_path
        self.tool_calls = list(tool_calls)
        self.probes = probes


def _shown(token: TokenText) -> TokenLogprob:
    top = [Candidate(one.token_id, one.text, one.logprob) for one in token.top]
    return TokenLogprob(token.token_id, token.text, token.logprob or 0.0, top)


def reported(scope: RunScope, token: int, found: EngineLogprob) -> TokenLogprob:
    """What a script sees of a token that it gave itself."""
    spelling = scope.text.tokenizer.spelling
    top = [
        Candidate(other, spelling(other).text, logprob)
        for other, logprob in zip(found.top_ids, found.top_logprobs, strict=True)
    ]
    return TokenLogprob(token, spelling(token).text, found.logprob, top)


def probes_by_name(probes: Sequence[Probes], num_tokens: int) -> dict[str, list[Probe]]:
    """What a device program noted down for the tokens that are kept: one value a token, by name."""
    kept = probes[:num_tokens]
    return {name: [one[name] for one in kept] for name in (kept[0] if kept else ())}


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateFields:
    """What a script asked of one generation.

    Attributes:
        asked: What the engine is told.
        logprobs: Alternatives a token that the script wants to see.
        emit: Its text is part of the answer.
    """

    asked: Asked
    logprobs: int | None
    emit: bool

    @classmethod
    def read(cls, fields: Mapping[str, Any], scope: RunScope, *, logprobs: object, emit: object) -> GenerateFields:
        """Checks the arguments.

        Raises:
            ValueError: One is not what it must be (`invalid_argument`, `constraint_invalid`).
        """
        return cls(
            asked=read_options(fields, scope.engine.info), logprobs=read_logprobs(logprobs), emit=flag(emit, "emit")
        )

    def guessed(self) -> GenerateFields:
        """The same with guesses of the script's."""
        return replace(self, asked=replace(self.asked, drafter=DrafterSpec(given=True)))

    def options(self, scope: RunScope, length: int, *, may_report: bool = True) -> GenerateOptions:
        """For a history of that length. It may generate one token more than the run has left, which ends the run.

        Args:
            scope: The run.
            length: Of the history.
            may_report: Log-probabilities are reported if the script reads them.

        Raises:
            ContextTooLong: There is no room for a token.
            InvalidRequest: A value is out of its range.
        """
        limit_tokens = scope.engine.info.limit_tokens
        if length >= limit_tokens:
            raise ContextTooLong(limit_tokens, length, None)
        logprobs = 0 if self.logprobs is None and scope.wants_logprobs and may_report else self.logprobs
        num_left = min(limit_tokens - length, scope.guard.decode_left + 1)
        options = self.asked.options(num_left=num_left, logprobs=logprobs)
        options.sampling.validate(scope.engine.info.vocab_size)
        return options


async def run_generation(
    scope: RunScope,
    live: LiveContext,
    fields: GenerateFields,
    num_pending: int,
    *,
    watch: AnswerWatch | None = None,
    shows_content: bool = False,
    on_wanted: Callable[[HeldStream, int], None] | None = None,
) -> Completion:
    """Continues a history to a stop.

    Args:
        scope: The run.
        live: The history.
        fields: What the script asked for.
        num_pending: Tokens that are computed first.
        watch: Finds calls in the text.
        shows_content: The text that is emitted and returned is the content alone, without calls and thinking.
        on_wanted: See `GenerateOptions`.

    Raises:
        EngineError: The engine refuses it or gives it up; the history is as it was.
    """
    lane = scope.planned(*fields.asked.features).lane
    start, num_computed, page_size = live.length, live.num_computed, scope.engine.info.page_size
    scope.guard.usage.num_generations += 1
    options = replace(fields.options(scope, start), on_wanted=on_wanted)
    if watch is not None and shows_content:
        options = replace(options, revealed_ids=watch.revealed_ids, thinking=watch.plan.thinking)
    answer = _Answer(scope, watch, emits=fields.emit, shows_content=shows_content)
    async with await live.generate(options) as generation:
        generation.divert(answer.take)
        async for step in generation:
            await answer.wait_and_take(step)
    usage = generation.usage
    if num_computed - usage.num_cached_tokens > page_size:
        scope.note_lost()
    scope.guard.usage.num_cached_tokens += num_found(usage.num_cached_tokens, start, num_pending)
    text = "".join(answer.texts)
    scope.last_finish = (text, answer.finish_reason)
    return Completion(
        text=text,
        tokens=live.token_ids[start:],
        finish_reason=answer.finish_reason,
        logprobs=answer.tokens,
        shows_logprobs=fields.logprobs is not None,
        usage=Usage(
            usage.num_prompt_tokens,
            usage.num_cached_tokens,
            usage.num_completion_tokens,
            usage.num_drafted_tokens,
            usage.num_accepted_tokens,
        ),
        exec_path=lane,
        tool_calls=() if watch is None else watch.calls,
        probes=probes_by_name(generation.probes, live.length - start),
    )


def num_found(num_held: int, length: int, num_pending: int) -> int:
    """How many of the tokens that are pending at the end of a history needed no computing.

    Args:
        num_held: Leading tokens of the history whose KV was there, in its context or in a cache.
        length: Tokens of the history.
        num_pending: Those of them that nothing was generated behind before.
    """
    return max(num_held - (length - num_pending), 0)


class _Answer:
    """What a generation has made up to now, and who is told of it.

    Attributes:
        texts: Pieces of its text.
        tokens: What is reported of its tokens.
        finish_reason: Why it ended, once it has.
    """

    def __init__(self, scope: RunScope, watch: AnswerWatch | None, *, emits: bool, shows_content: bool) -> None:
        self._scope = scope
        self._watch = watch
        self._emits = emits
        self._shows_content = shows_content
        self.texts: list[str] = []
        self.tokens: list[TokenText] = []
        self.finish_reason: Literal["stop", "length"] = "stop"

    def take(self, step: GenerationStep) -> bool:
        """Takes a step at once, without anybody's waking for it; false if its text has to wait for the client."""
        if self._emits and not self._scope.has_room:
            return False
        text = self._read(step)
        if self._emits:
            self._scope.put(text)
        return True

    async def wait_and_take(self, step: GenerationStep) -> None:
        """Takes a step; waits while the client is slow to read."""
        text = self._read(step)
        if self._emits:
            await self._scope.emit(text)
        if step.finish_reason == "abort":
            raise EngineStopped("the engine gave a generation up")
        if step.finish_reason is not None:
            self.finish_reason = step.finish_reason

    def _read(self, step: GenerationStep) -> str:
        """Counts a step and returns the text that is shown of it."""
        self._scope.guard.count_decode(len(step.token_ids))
        text = step.text
        if self._watch is not None:
            content = self._watch.feed(text)
            if step.finish_reason is not None:
                content += self._watch.end(is_cut=step.finish_reason == "length")
            text = content if self._shows_content else text
        self.texts.append(text)
        self.tokens += step.tokens
        return text
