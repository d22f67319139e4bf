"""A pass over rows that a script put together: computed behind its contexts, of which it keeps what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.request import Probe, ProgramSpec, Proposal, Readout
from engine.sampling.params import SamplingParams
from extensions.output import GenerateOptions
from extensions.passes import PassLane, draw_once
from extensions.programs.faults import invalid
from extensions.programs.planner import Feature
from extensions.programs.rows import LaneRows, Rows, lane_rows
from extensions.scoring import gather_all

if TYPE_CHECKING:
    from extensions.live_context import LiveContext
    from extensions.programs.contexts import ScriptContext
    from extensions.programs.scope import RunScope
    from extensions.stepped import Distribution


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """What came of it.

    Attributes:
        token: What the program drew, if there is one.
        probes: What it noted down.
        distributions: Behind the rows read, in the script's order, if there is none.
        folded: Tokens that each context has gained.
    """

    token: int | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    distributions: list[Distribution] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)


def keeps_nothing(fold: object) -> bool:
    """Whether no row of a pass stays, whatever its program says; False too of what is no `fold` at all."""
    each = fold if isinstance(fold, list | tuple) else [fold]
    return all(one in ("none", None) or (one == 0 and not isinstance(one, bool)) for one in each)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPass:
    """A pass over rows.

    Attributes:
        contexts: What the rows follow.
        rows: The rows.
        readout: What is wanted of each distribution.
        fold: How many rows of each lane stay, None for all; or the probe that says so.
        program: Draws a token from the rows read, or judges the guess that they are.
        proposals: What the tokens of that guess were drawn from, if they were.
    """

    contexts: Sequence[ScriptContext]
    rows: Rows
    readout: Readout
    fold: str | list[int | None]
    program: ProgramSpec | None
    proposals: Sequence[Proposal] = ()

    async def run(self, scope: RunScope, seed: int | None) -> Looked:
        """Computes it.

        Raises:
            ValueError: Rows, positions, slots, masks or folds do not fit (`invalid_argument`).
            EngineError: The engine refuses it or gives it up; the histories are as they were.
        """
        if self.program is None and isinstance(self.fold, str):
            raise invalid("only a program can say how many rows stay: await fwd.epilogue(program)")
        scope.planned(Feature.DISTRIBUTION if self.program is None else Feature.FORWARD)
        keeps = isinstance(self.fold, str) or any(count != 0 for count in self.fold)
        async with scope.generating, AsyncExitStack() as stack:
            histories = [context.history for context in self.contexts]
            branches = [
                await stack.enter_async_context(history.growing() if keeps else history.branch())
                for history in histories
            ]
            lanes = await self._lanes([branch.token_ids for branch in branches])
            counts = self._folds(lanes, None)
            scope.guard.count_prefill(len(self.rows.tokens))
            if self.program is None:
                looked = Looked(distributions=await self._look(branches, lanes))
            else:
                scope.guard.usage.num_generations += 1
                token, probes = await self._draw(branches, lanes, self.program, seed)
                scope.guard.count_decode(1)
                looked = Looked(token=token, probes=probes)
                counts = self._folds(lanes, probes)
            for history, lane, count in zip(histories, lanes, counts, strict=True):
                if count:
                    history.live.append(lane.tokens[:count])
            return Looked(token=looked.token, probes=looked.probes, distributions=looked.distributions, folded=counts)

    async def _lanes(self, histories: Sequence[Sequence[int]]) -> list[LaneRows]:
        if self.rows.rule is None:
            return lane_rows(self.rows, histories)
        return await asyncio.to_thread(lane_rows, self.rows, histories)  # a rule takes a while

    async def _look(self, branches: Sequence[LiveContext], lanes: Sequence[LaneRows]) -> list[Distribution]:
        places = self._places(lanes)
        found = await gather_all(
            [
                branch.look_once(
                    lane.tokens,
                    sorted({place for at, place in places if at == number}),
                    positions=lane.positions,
                    sights=lane.sights,
                    readout=self.readout,
                )
                for number, (branch, lane) in enumerate(zip(branches, lanes, strict=True))
            ]
        )
        by_place: dict[tuple[int, int], Distribution] = {}
        for number, distributions in enumerate(found):
            read = sorted({place for at, place in places if at == number})
            by_place |= {(number, place): one for place, one in zip(read, distributions, strict=True)}
        return [by_place[place] for place in places]

    async def _draw(
        self, branches: Sequence[LiveContext], lanes: Sequence[LaneRows], program: ProgramSpec, seed: int | None
    ) -> tuple[int, Mapping[str, Probe]]:
        places = self._places(lanes)
        if sorted(set(places)) != places:
            raise invalid("a program reads rows in the order of lanes and slots: readout must rise so")
        options = GenerateOptions(
            sampling=SamplingParams(max_tokens=1, seed=seed, ignore_eos=True), report_tokens=False, program=program
        )
        return await draw_once(
            [
                PassLane(
                    context=branch,
                    token_ids=lane.tokens,
                    rows=[place for at, place in places if at == number],
                    positions=lane.positions,
                    sights=lane.sights,
                    proposals=self.proposals,
                )
                for number, (branch, lane) in enumerate(zip(branches, lanes, strict=True))
            ],
            options,
        )

    def _places(self, lanes: Sequence[LaneRows]) -> list[tuple[int, int]]:
        """Lane and place of each row that is read."""
        return [
            next((at, lane.places[row]) for at, lane in enumerate(lanes) if row in lane.places)
            for row in self.rows.read
        ]

    def _folds(self, lanes: Sequence[LaneRows], probes: Mapping[str, Probe] | None) -> list[int]:
        """Rows of each lane that stay; 0 where only the program will know."""
        sizes = [len(lane.tokens) for lane in lanes]
        if isinstance(self.fold, str):
            if probes is None:
                return [0] * len(lanes)
            said = probes.get(self.fold)
            if isinstance(said, bool) or not isinstance(said, int) or said < 0:
                raise invalid(f"the program must write a whole number to probe.{self.fold}, at least 0")
            return [min(said, size) for size in sizes]
        counts = [size if count is None else count for count, size in zip(self.fold, sizes, strict=True)]
        for count, size in zip(counts, sizes, strict=True):
            if count > size:
                raise invalid(f"fold keeps {count} rows of a lane that has {size}")
        return counts
