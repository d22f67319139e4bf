"""A pass over rows that a script put together: computed behind its contexts, of which it keeps what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from engine.request import AttentionSpec, Probe, ProgramSpec, Proposal, Readout
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
        attention: What the rows read attend to, in the script's order, or the sum of each lane's; see `TokenEvent`.
        histories: Tokens of the history that each of them is of, rows included.
    """

    token: int | None = None
    probes: Mapping[str, Probe] = field(default_factory=dict)
    distributions: list[Distribution] = field(default_factory=list)
    folded: list[int] = field(default_factory=list)
    attention: Sequence[bytes] = ()
    histories: Sequence[Sequence[int]] = ()


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
        attention: Tell what the rows read attend to.
    """

    contexts: Sequence[ScriptContext]
    rows: Rows
    readout: Readout
    fold: str | list[int | None]
    program: ProgramSpec | None
    proposals: Sequence[Proposal] = ()
    attention: AttentionSpec | None = None

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
        async with scope.turn(), AsyncExitStack() as stack:
            histories = [context.history for context in self.contexts]
            branches = [
                await stack.enter_async_context(history.growing() if keeps else history.branch())
                for history in histories
            ]
            lanes = await self._lanes([branch.token_ids for branch in branches])
            counts = self._folds(lanes, None)
            scope.guard.count_prefill(len(self.rows.tokens))
            if self.program is None:
                looked = await self._look(branches, lanes)
            else:
                scope.guard.usage.num_generations += 1
                looked = await self._draw(branches, lanes, self.program, seed)
                scope.guard.count_decode(1)
                counts = self._folds(lanes, looked.probes)
            for history, lane, count in zip(histories, lanes, counts, strict=True):
                if count:
                    history.live.append(lane.tokens[:count])
            return replace(looked, folded=counts)

    async def _lanes(self, histories: Sequence[Sequence[int]]) -> list[LaneRows]:
        if self.rows.rule is None:
            return lane_rows(self.rows, histories)
        return await asyncio.to_thread(lane_rows, self.rows, histories)  # a rule takes a while

    async def _look(self, branches: Sequence[LiveContext], lanes: Sequence[LaneRows]) -> Looked:
        places = self._places(lanes)
        read = [sorted({place for at, place in places if at == number}) for number in range(len(lanes))]
        found = await gather_all(
            [
                branch.look_once(
                    lane.tokens,
                    rows,
                    positions=lane.positions,
                    sights=lane.sights,
                    changes=lane.changes,
                    readout=self.readout,
                    attention=self.attention,
                )
                for branch, lane, rows in zip(branches, lanes, read, strict=True)
            ]
        )
        distributions: dict[tuple[int, int], Distribution] = {}
        attended: dict[tuple[int, int], bytes] = {}
        for number, (one, rows) in enumerate(zip(found, read, strict=True)):
            distributions |= {(number, row): each for row, each in zip(rows, one.distributions, strict=True)}
            if one.attention:
                attended |= {(number, row): each for row, each in zip(self._told(rows), one.attention, strict=True)}
        return Looked(
            distributions=[distributions[place] for place in places],
            attention=[attended[place] for place in self._told_of(places)],
            histories=[branches[number].token_ids for number, _ in self._told_of(places)],
        )

    async def _draw(
        self, branches: Sequence[LiveContext], lanes: Sequence[LaneRows], program: ProgramSpec, seed: int | None
    ) -> Looked:
        places = self._places(lanes)
        if sorted(set(places)) != places:
            raise invalid("a program reads rows in the order of lanes and slots: readout must rise so")
        options = GenerateOptions(
            sampling=SamplingParams(max_tokens=1, seed=seed, ignore_eos=True),
            report_tokens=False,
            program=program,
            attention=self.attention,
        )
        histories = [[*branch.token_ids, *lane.tokens] for branch, lane in zip(branches, lanes, strict=True)]
        drawn = await draw_once(
            [
                PassLane(
                    context=branch,
                    token_ids=lane.tokens,
                    rows=[place for at, place in places if at == number],
                    positions=lane.positions,
                    sights=lane.sights,
                    proposals=self.proposals,
                    changes=lane.changes,
                )
                for number, (branch, lane) in enumerate(zip(branches, lanes, strict=True))
            ],
            options,
        )
        return Looked(
            token=drawn.token_id,
            probes=drawn.probes,
            attention=drawn.attention,
            histories=[histories[number] for number, _ in self._told_of(places)],
        )

    def _told_of(self, places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Lane and place of each row of which attention is told: the first of each lane where that is a sum."""
        if self.attention is None:
            return []
        if not self.attention.total:
            return list(places)
        return [(number, min(row for at, row in places if at == number)) for number in sorted({at for at, _ in places})]

    def _told(self, rows: Sequence[int]) -> Sequence[int]:
        """The same of the rows of one lane."""
        return rows[:1] if self.attention is not None and self.attention.total else rows

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
