"""What the rows of a pass attend to, as a script has it; see the stubs."""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from engine.programs.binding import BoundProgram
from engine.programs.purposes import KEEP
from engine.request import AttentionSpec
from extensions.programs.faults import fault, invalid
from extensions.programs.options import flag
from extensions.programs.samplers import ScriptProgram, make_program

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from extensions.programs.scope import RunScope

MAX_TOP = 4096
"""Slots that are listed by name."""


class SlotScore(NamedTuple):
    """See `SlotScore` in the stubs."""

    slot: int
    score: float


@dataclass(frozen=True, slots=True)
class AttentionAsked:
    """What a script wants to know.

    Attributes:
        spec: What the engine is told.
        top: Slots that are listed by name.
        layers: Numbers of the layers whose own scores are told; none where what is made of all is.
        rule: Says what stays, if anything does.
    """

    spec: AttentionSpec
    top: int
    layers: Sequence[int] = ()
    rule: BoundProgram | None = None

    def read(self, found: Sequence[bytes], histories: Sequence[Sequence[int]]) -> list[ScriptAttention]:
        """What the engine has found, of these histories."""
        return [self._read(one, history) for one, history in zip(found, histories, strict=True)]

    def _read(self, found: bytes, history: Sequence[int]) -> ScriptAttention:
        if not self.layers:
            return ScriptAttention(_floats(found), history, self.top, self.rule)
        size = len(found) // len(self.layers)
        layers = [
            ScriptAttention(_floats(found[at * size : (at + 1) * size]), history, self.top, self.rule, layer=layer)
            for at, layer in enumerate(self.layers)
        ]
        return ScriptAttention((), history, self.top, self.rule, layers=layers, greatest=self.spec.reduce == "max")


def _floats(found: bytes) -> Sequence[float]:
    values = array("f", found)
    if sys.byteorder == "big":
        values.byteswap()
    return values


class ScriptAttention:
    """What one row attends to, or all rows of a lane together; see `Attention` in the stubs.

    Args:
        found: A number for each of the first slots.
        history: Tokens of its slots, rows included.
        top: Slots that are listed by name.
        rule: Says what stays.
        layer: Whose that is; -1 for what is made of several.
        layers: Of each of those by itself, if that is told; then there is nothing in `found`.
        greatest: What is made of them is the greatest instead of the mean.
    """

    def __init__(
        self,
        found: Sequence[float],
        history: Sequence[int],
        top: int,
        rule: BoundProgram | None = None,
        *,
        layer: int = -1,
        layers: Sequence[ScriptAttention] = (),
        greatest: bool = False,
    ) -> None:
        self.layer = layer
        self.layers = list(layers)
        self._greatest = greatest
        self._found = found
        self._history = history
        self._top = top
        self._rule = rule

    @cached_property
    def scores(self) -> list[float]:
        """One a slot."""
        if self.layers:
            columns = zip(*(one.scores for one in self.layers), strict=True)
            return [max(column) if self._greatest else sum(column) / len(column) for column in columns]
        return [*self._found, *[0.0] * (len(self._history) - len(self._found))]

    @cached_property
    def top(self) -> list[SlotScore]:
        """The slots that are attended to most, best first."""
        scores = self.scores
        best = heapq.nsmallest(min(self._top, len(scores)), range(len(scores)), key=lambda slot: (-scores[slot], slot))
        return [SlotScore(slot, scores[slot]) for slot in best]

    @cached_property
    def dropped(self) -> list[list[int]]:
        """What the program does not keep: [start, stop] of each run of slots."""
        if self._rule is None:
            return []
        import numpy as np  # here: gateways do without it until a script asks

        # Memory of a slot is that of all layers: it goes where none keeps it.
        parts = self.layers or [self]
        stays = np.logical_or.reduce([part._stays(self._rule) for part in parts])
        edges = np.flatnonzero(np.diff(~stays, prepend=False, append=False)).tolist()
        return [list(span) for span in zip(edges[::2], edges[1::2], strict=True)]

    def _stays(self, rule: BoundProgram) -> npt.NDArray[np.bool_]:
        import numpy as np

        from engine.programs.keeping import kept_slots

        scores = np.array(self.scores, dtype=np.float32)
        return kept_slots(rule, scores, np.array(self._history, dtype=np.int64), self.layer)

    @property
    def omitted_mass(self) -> float:
        """What all other slots have together."""
        return max(0.0, sum(self.scores) - sum(one.score for one in self.top))


def read_attention(
    scope: RunScope,
    program: object,
    *,
    reduce: object,
    layers: object,
    heads: object,
    total: object,
    by_layer: object,
    top: object,
) -> AttentionAsked:
    """Reads the arguments of `on_attention`.

    Raises:
        RuntimeError: The server does without (`capability_missing`).
        ValueError: One is not what it must be (`invalid_argument`, `program_invalid`).
    """
    rule = None
    if program is not None:
        made = make_program(program, {}, 0) if isinstance(program, str) else program
        if not isinstance(made, ScriptProgram):
            raise invalid("program must be what lm.program returned, or the text of one without parameters")
        made.check(KEEP)
        rule = made.bound
    info = scope.engine.info
    if not info.reads_attention:
        raise fault("capability_missing", "what rows attend to cannot be read here (wye serve --attention-scores)")
    if reduce not in ("mean", "max"):
        raise invalid('reduce must be "mean" or "max"')
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= MAX_TOP:
        raise invalid(f"top must be a whole number from 0 to {MAX_TOP}")
    spec = AttentionSpec(
        layers=_chosen(layers, "layers", info.num_layers),
        heads=_chosen(heads, "heads", info.num_heads),
        reduce="mean" if reduce == "mean" else "max",
        total=flag(total, "total"),
        by_layer=flag(by_layer, "by_layer"),
    )
    told = (spec.layers or range(info.num_layers)) if spec.by_layer else ()
    return AttentionAsked(spec, top, told, rule)


def _chosen(value: object, name: str, count: int) -> list[int]:
    """Numbers of layers or heads, negative ones counted from the end; none stands for all."""
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence) or not value:
        raise invalid(f"{name} must be a list of whole numbers, at least one, or None for all")
    if not all(isinstance(one, int) and not isinstance(one, bool) and -count <= one < count for one in value):
        raise invalid(f"{name} are numbered from 0 to {count - 1}, or from -1 down to {-count} from the end")
    found = sorted({one % count for one in value})
    if len(found) < len(value):
        raise invalid(f"{name} names one of them twice")
    return found
