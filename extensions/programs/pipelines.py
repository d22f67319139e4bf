"""Passes that follow each other, and `lm`'s part of the forward pass; see the stubs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

from engine.request import Probe
from extensions.programs.ahead import Stop, read_ahead
from extensions.programs.drawing import Drawn
from extensions.programs.faults import invalid
from extensions.programs.forward import ScriptForward, ScriptPass
from extensions.programs.options import flag
from extensions.programs.ordering import PassOrder

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope


class ScriptPipeline:
    """Passes one after the other, but for looks; separate pipelines do not wait for each other.

    Attributes:
        finish_reason: How the newest `run_ahead` ended; None before.
        probes: What its program noted down, one value a token, by name.
    """

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope
        self._order = PassOrder()
        self.finish_reason: Literal["stop", "length"] | None = None
        self.probes: dict[str, list[Probe]] = {}

    async def submit(self, fwd: ScriptForward, *, seed: int | None = None) -> ScriptSubmitted:
        """Runs a pass behind those that were submitted before and change a context; a look beside other looks."""
        _check_forward(fwd)
        as_it_is = copy(fwd)
        task = self._order.add(self._scope.beside, lambda: as_it_is.run(seed=seed), is_look=fwd.is_look)
        return ScriptSubmitted(task)

    async def submit_frame(self, passes: Sequence[ScriptForward], *, seed: int | None = None) -> list[ScriptSubmitted]:
        """Submits several."""
        if isinstance(passes, str | bytes | Mapping) or not isinstance(passes, Sequence):
            raise invalid("passes must be a list of what lm.forward() returned")
        for fwd in passes:
            _check_forward(fwd)
        return [await self.submit(fwd, seed=seed) for fwd in passes]

    async def run_ahead(
        self,
        fwd: ScriptForward,
        budget: int,
        *,
        stop: Stop = "template",
        stop_token_ids: Sequence[int] = (),
        template_stops: bool | None = None,
        seed: int | None = None,
        constrain: Any = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | Mapping[str, float] | None = None,
        min_tokens: int | None = None,
        emit: bool = False,
    ) -> list[int]:
        """The same pass again and again."""
        fields = dict(locals())
        for name in ("self", "fwd", "budget", "stop", "emit"):
            del fields[name]
        _check_forward(fwd)
        asked, emits = await read_ahead(self._scope, budget, stop, fields), flag(emit, "emit")
        as_it_is = copy(fwd)

        def draw() -> Coroutine[Any, Any, Drawn]:
            return as_it_is.draw(asked, emit=emits)

        task = self._order.add(self._scope.beside, draw, is_look=False)
        try:
            drawn = await task
        except BaseException:
            self._order.forgive(task)
            raise
        self.finish_reason, self.probes = drawn.finish_reason, dict(drawn.probes)
        return drawn.tokens


class ScriptSubmitted:
    """A pass on its way; see `Submitted` in the stubs."""

    def __init__(self, task: asyncio.Task[ScriptPass]) -> None:
        self._task = task

    async def result(self) -> ScriptPass:
        """Waits for it."""
        return await asyncio.shield(self._task)


def _check_forward(fwd: Any) -> None:
    if not isinstance(fwd, ScriptForward):
        raise invalid("fwd must be what lm.forward() returned")


class ForwardCalls:
    """What `lm` can do with passes."""

    _scope: RunScope

    def forward(self) -> ScriptForward:
        """An empty pass."""
        return ScriptForward(self._scope)

    def pipeline(self) -> ScriptPipeline:
        """Passes in order."""
        return ScriptPipeline(self._scope)
