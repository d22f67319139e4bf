"""Mask rules: what the rows of a pass see, all rows of a lane together; compared with `engine.programs.reference`.

What does not depend on the row is computed once, the rest for as many rows at a time as take little memory. It is
computed where a pass is put together, in whichever thread asks.

Letters: R rows of a lane, S its slots (its history, then the rows), B rows that are computed at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.programs.binding import BoundProgram
from engine.programs.errors import ProgramMisused
from engine.programs.graph import Graph, Node
from engine.programs.reference import ALIKE, Evaluation
from engine.programs.types import HISTORY
from engine.programs.values import Array, StepValues

MAX_WORK = 2**27
"""Numbers that a rule may make for one lane, about half a second's worth."""

MAX_LIVE = 2**24
"""Numbers that it may hold at a time."""

_CALL_COST, _FACTOR = 4096, 8
"""What it counts for to compute a value row by row: as so many numbers, and each of its own as so many."""

_BLOCK = 2**17
"""Numbers of one value that are computed at a time; more only where a row has more slots."""

_OF_A_ROW = frozenset({"row", "own", "position"})
"""Inputs that are others for other rows."""

_POINTWISE = frozenset({"where", "float", "int"})

Bits = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskLane:
    """One lane of a pass.

    Attributes:
        number: Which lane.
        token_ids: [S], of its history and its rows, in the order of slots.
        positions: [R], rotary positions of its rows.
    """

    number: int
    token_ids: Sequence[int]
    positions: Sequence[int]

    @property
    def start(self) -> int:
        """Slot of the first row."""
        return len(self.token_ids) - len(self.positions)

    def values(self, row: int) -> StepValues:
        """What a rule may read of the lane and of one of its rows."""
        slots = np.arange(len(self.token_ids), dtype=np.int64)
        singles = {
            "row": row,
            "own": self.start + row,
            "position": self.positions[row],
            "start": self.start,
            "lane": self.number,
        }
        others: dict[str, Array] = {name: np.asarray(value, np.int64) for name, value in singles.items()}
        others["slot"] = slots
        others["positions"] = np.concatenate([slots[: self.start], np.asarray(self.positions, np.int64)])
        history = np.asarray(self.token_ids, np.int64)
        return StepValues(vocab_size=0, history=history, others=others)


def seen_by_rows(rule: BoundProgram, lane: MaskLane) -> Bits:
    """What the rows of a lane see, as far as a rule says it: [R, S]. Slots behind a row's own are its own affair.

    Raises:
        ProgramMisused: It would take too long, or too much memory.
    """
    num_rows, num_slots = len(lane.positions), len(lane.token_ids)
    rows = _Rows(rule, lane)
    size = max(1, min(_BLOCK, MAX_LIVE // len(rule.graph.nodes)) // num_slots)
    found = np.empty((num_rows, num_slots), dtype=bool)
    for first in range(0, num_rows, size):
        last = min(first + size, num_rows)
        found[first:last] = rows.block(first, last)
    return found


class _Rows:
    """A rule computed for blocks of rows; every value is [1 or B, 1], [1 or B, S] or [1 or B, K]."""

    def __init__(self, rule: BoundProgram, lane: MaskLane) -> None:
        self._graph = rule.graph
        self._lane = lane
        self._one = Evaluation(rule.graph, lane.values(0), rule.parameters, {})
        order = _needed(rule.graph)
        dependent = _dependent(rule.graph, order)
        _check_cost(rule.graph, order, dependent, lane)
        self._order = [at for at in order if at in dependent]
        self._last_use = {arg: at for at in self._order for arg in rule.graph.nodes[at].args}
        self._shared: dict[int, Any] = {}
        for at in order:
            if at not in dependent:
                self._shared[at] = self._computed(rule.graph.nodes[at], self._shared)

    def block(self, first: int, last: int) -> Bits:
        """What rows first..last-1 see: [1 or B, 1 or S]."""
        known = dict(self._shared)
        for at in self._order:
            node = self._graph.nodes[at]
            known[at] = self._of_rows(node, first, last) if node.op == "input" else self._computed(node, known)
            for arg in set(node.args):
                if self._last_use[arg] == at and arg != self._graph.token:
                    del known[arg]
        found: Bits = known[self._graph.token]
        return found

    def _of_rows(self, node: Node, first: int, last: int) -> Any:
        rows = np.arange(first, last, dtype=np.int64)
        match node.attributes[0]:
            case "row":
                return rows[:, None]
            case "own":
                return rows[:, None] + self._lane.start
        return np.asarray(self._lane.positions[first:last], np.int64)[:, None]

    def _computed(self, node: Node, known: Mapping[int, Any]) -> Any:
        args = [known[arg] for arg in node.args]
        if node.op == "gather" and len(args[0]) == 1:
            return self._one.compute(node, [args[0][0], args[1]])
        if _is_pointwise(node):
            return self._one.compute(node, args)
        types = [self._graph.nodes[arg].type for arg in node.args]
        count = max((len(arg) for arg in args), default=1)
        rows = []
        for row in range(count):
            own = [arg[min(row, len(arg) - 1)] for arg in args]
            alone = [one if kind.axis is not None else one[0] for one, kind in zip(own, types, strict=True)]
            rows.append(np.atleast_1d(self._one.compute(node, alone)))
        return np.stack(rows)


def _needed(graph: Graph) -> list[int]:
    """Nodes that the answer is made of, in order."""
    needed, todo = set(), [graph.token]
    while todo:
        at = todo.pop()
        if at not in needed:
            needed.add(at)
            todo += graph.nodes[at].args
    return sorted(needed)


def _dependent(graph: Graph, order: Sequence[int]) -> set[int]:
    """Those of them that are others for other rows."""
    found: set[int] = set()
    for at in order:
        node = graph.nodes[at]
        if (node.op == "input" and node.attributes[0] in _OF_A_ROW) or not found.isdisjoint(node.args):
            found.add(at)
    return found


def _check_cost(graph: Graph, order: Sequence[int], dependent: set[int], lane: MaskLane) -> None:
    num_rows, num_slots = len(lane.positions), len(lane.token_ids)

    def width(at: int) -> int:
        axis = graph.nodes[at].type.axis
        return num_slots if axis == HISTORY else axis if isinstance(axis, int) else 1

    work, live = 0, 0
    for at in order:
        node, times = graph.nodes[at], num_rows if at in dependent else 1
        widest = max(width(one) for one in (at, *node.args))
        is_quick = _is_pointwise(node) or (node.op == "gather" and node.args[0] not in dependent)
        work += times * (widest if is_quick else widest * _FACTOR + _CALL_COST)
        live += width(at)
    if work > MAX_WORK or live > MAX_LIVE:
        raise ProgramMisused(
            f"the rule makes {work} numbers for {num_rows} rows and {num_slots} slots, and holds {live} at a time; "
            f"{MAX_WORK} and {MAX_LIVE} are allowed",
            "mask",
        )


def _is_pointwise(node: Node) -> bool:
    if node.op in ("max", "min"):
        return len(node.args) == 2
    return node.op in _POINTWISE or node.op in ALIKE
