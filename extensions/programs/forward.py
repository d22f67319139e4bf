"""The forward pass as a script has it: contexts that go on together, and what draws their token; see the stubs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.errors import EngineStopped
from engine.forward.validation import MAX_LANES
from engine.request import Probe, ProgramSpec
from engine.sampling.params import SamplingParams
from extensions.output import GenerateOptions
from extensions.programs.faults import fault, invalid
from extensions.programs.generating import probes_by_name
from extensions.programs.planner import Feature
from extensions.programs.samplers import ScriptProgram

if TYPE_CHECKING:
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.scope import RunScope


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What contexts were given by a pass, or by many.

    Attributes:
        tokens: In order.
        finish_reason: `length` if there were as many as were asked for.
        probes: What the program noted down: one value a token, by name.
    """

    tokens: list[int]
    finish_reason: Literal["stop", "length"]
    probes: Mapping[str, list[Probe]]


class ScriptPass:
    """What came of one pass; see `Pass` in the stubs."""

    def __init__(self, drawn: Drawn) -> None:
        self.token = drawn.tokens[0]
        self.probes = {name: values[0] for name, values in drawn.probes.items()}


class ScriptForward:
    """One pass, put together call by call.

    Args:
        scope: The run.
    """

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope
        self._contexts: list[ScriptContext] = []
        self._program: ScriptProgram | None = None

    # -- what a script may call -------------------------------------------------------------------------------------

    async def embed_next(self, contexts: Sequence[ScriptContext]) -> None:
        """Each lane is a context and reads the token that this is about to read."""
        from extensions.programs.contexts import ScriptContext  # both name each other

        if isinstance(contexts, str | bytes | Mapping) or not isinstance(contexts, Sequence):
            raise invalid("contexts must be a list of contexts")
        found = list(contexts)
        if not found or not all(isinstance(one, ScriptContext) and one.scope is self._scope for one in found):
            raise invalid("contexts must be contexts of this program, at least one")
        if len(found) > MAX_LANES:
            raise invalid(f"contexts has {len(found)} lanes, at most {MAX_LANES} go on together")
        if len(set(map(id, found))) < len(found):
            raise invalid("a context can only be one of the lanes: fork it for another")
        self._contexts = found

    async def epilogue(self, program: ScriptProgram) -> None:
        """This program draws the token."""
        if not isinstance(program, ScriptProgram):
            raise invalid("program must be what lm.program returned")
        self._program = program

    async def run(self, *, seed: int | None = None) -> ScriptPass:
        """One pass."""
        return ScriptPass(await self.draw(max_tokens=1, seed=seed, template_stops=False))

    # -- what the run does ------------------------------------------------------------------------------------------

    async def draw(
        self,
        *,
        max_tokens: int,
        seed: int | None,
        template_stops: bool,
        stop_token_ids: Sequence[int] = (),
        emit: bool = False,
    ) -> Drawn:
        """Passes until a stop, without the script in between.

        Raises:
            ValueError: The pass lacks contexts or a program, or an argument is out of its range.
            EngineError: The engine refuses it or gives it up; the histories are as they were.
        """
        contexts, program = self._contexts, self._checked()
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise invalid("seed must be a whole number")
        scope = self._scope
        scope.planned(Feature.FORWARD)
        async with scope.generating, AsyncExitStack() as stack:
            for context in contexts:
                await stack.enter_async_context(context.history.answering(takes_turn=False))
            options = GenerateOptions(
                sampling=SamplingParams(
                    max_tokens=min(max_tokens, scope.guard.decode_left + 1),
                    seed=seed,
                    ignore_eos=not template_stops,
                    stop_token_ids=tuple(stop_token_ids),
                ),
                report_tokens=False,
                program=program,
            )
            options.sampling.validate(scope.engine.info.vocab_size)
            return await _draw(scope, contexts, options, emit=emit)

    def _checked(self) -> ProgramSpec:
        if not self._contexts:
            raise invalid("the pass has no lanes: await fwd.embed_next(contexts)")
        if self._program is None:
            raise invalid("nothing draws the token: await fwd.epilogue(program)")
        if self._program.num_lanes > len(self._contexts):
            have, reads = len(self._contexts), self._program.num_lanes
            raise fault("program_invalid", f"it reads lanes[{reads - 1}], and the pass has {have} lane(s)")
        return self._program.spec


async def _draw(scope: RunScope, contexts: Sequence[ScriptContext], options: GenerateOptions, *, emit: bool) -> Drawn:
    first, *others = [context.history.live for context in contexts]
    start, texts = first.length, []
    finish_reason: Literal["stop", "length"] = "stop"
    scope.guard.usage.num_generations += 1
    async with await first.generate(options, beside=others) as generation:
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
    tokens = first.token_ids[start:]
    return Drawn(tokens=tokens, finish_reason=finish_reason, probes=probes_by_name(generation.probes, len(tokens)))
