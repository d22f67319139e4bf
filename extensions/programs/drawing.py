"""Tokens that a program draws from the ends of several contexts, and that all of these are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from engine.errors import EngineStopped
from engine.forward.shapes import Shape
from engine.request import AttentionSpec, LanePass, Probe, ProgramSpec, SiteChange
from extensions.output import GenerateOptions
from extensions.programs.generating import probes_by_name
from extensions.programs.options import Asked
from extensions.programs.planner import Feature

if TYPE_CHECKING:
    from extensions.live_context import LiveContext
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.scope import RunScope


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What contexts were given by a pass, or by many.

    Attributes:
        tokens: In order.
        finish_reason: `length` if there were as many as were asked for.
        probes: What the program noted down: one value a token, by name.
        attention: What the last token of each history attended to, if that was asked; see `TokenEvent`.
    """

    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    probes: Mapping[str, list[Probe]]
    attention: Sequence[bytes] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EndPass:
    """Passes that read the ends of contexts, one after the other.

    Attributes:
        contexts: The lanes.
        changes: What adapters do to a lane, by its number: to the token that it is about to read and to those behind.
        program: Draws.
        attention: Tell what the last token of each lane attends to; of a single pass.
    """

    contexts: Sequence[ScriptContext]
    changes: Mapping[int, Sequence[SiteChange]]
    program: ProgramSpec
    attention: AttentionSpec | None = None

    async def run(self, scope: RunScope, asked: Asked, *, emit: bool) -> Drawn:
        """Passes until a stop, without the script in between.

        What an adapter changes is computed on a copy: the context has its own KV of the tokens that it is given.

        Raises:
            ValueError: A context is busy or released, or an argument is out of its range.
            EngineError: The engine refuses it or gives it up; the histories are as they were.
        """
        scope.planned(Feature.FORWARD)
        async with scope.turn(), AsyncExitStack() as stack:
            lanes = [await self._lane(stack, number) for number in range(len(self.contexts))]
            num_left = scope.guard.decode_left + 1
            most = num_left if asked.max_tokens is None else min(asked.max_tokens, num_left)
            options = replace(asked, max_tokens=most, program=self.program).options(num_left=most, logprobs=None)
            options = replace(options, attention=self.attention)
            options.sampling.validate(scope.engine.info.vocab_size)
            drawn = await _draw(scope, lanes, self._passes(lanes), options, emit=emit)
            for number in self.changes:
                self.contexts[number].history.live.append(drawn.tokens)
            return drawn

    async def _lane(self, stack: AsyncExitStack, number: int) -> LiveContext:
        history = self.contexts[number].history
        if number in self.changes:
            return await stack.enter_async_context(history.growing())
        await stack.enter_async_context(history.answering(takes_turn=False))
        return history.live

    def _passes(self, lanes: Sequence[LiveContext]) -> list[LanePass]:
        """What is said of each lane; nothing where all are like any others."""
        if not self.changes:
            return []
        return [
            LanePass([], Shape(lane.length - 1, []), changes=list(self.changes[number]))
            if number in self.changes
            else LanePass([])
            for number, lane in enumerate(lanes)
        ]


async def _draw(
    scope: RunScope,
    lanes: Sequence[LiveContext],
    passes: Sequence[LanePass],
    options: GenerateOptions,
    *,
    emit: bool,
) -> Drawn:
    first, *others = lanes
    start, texts = first.length, []
    finish_reason: Literal["stop", "length"] = "stop"
    scope.guard.usage.num_generations += 1
    async with await first.generate(options, beside=others, passes=passes) as generation:
        async for step in generation:
            scope.guard.count_decode(len(step.token_ids))
            texts.append(step.text)
            if emit:
                await scope.emit(step.text)
            if step.finish_reason == "abort":
                raise EngineStopped("the engine gave a generation up")
            if step.finish_reason is not None:
                finish_reason = step.finish_reason
    scope.last_finish = ("".join(texts), finish_reason)
    tokens = list(first.token_ids[start:])
    return Drawn(
        tokens=tokens,
        finish_reason=finish_reason,
        probes=probes_by_name(generation.probes, len(tokens)),
        attention=generation.attention,
    )
