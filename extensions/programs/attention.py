"""What the rows of a pass attend to, as a script has it; see the stubs."""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from engine.request import AttentionSpec
from extensions.programs.faults import fault, invalid
from extensions.programs.options import flag

if TYPE_CHECKING:
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
    """

    spec: AttentionSpec
    top: int

    def read(self, found: Sequence[bytes], lengths: Sequence[int]) -> list[ScriptAttention]:
        """What the engine has found, of histories of these lengths."""
        return [ScriptAttention(one, length, self.top) for one, length in zip(found, lengths, strict=True)]


class ScriptAttention:
    """What one row attends to, or all rows of a lane together; see `Attention` in the stubs.

    Args:
        found: Little-endian float32, a number for each of the first slots.
        length: Slots of the history, rows included.
        top: Slots that are listed by name.
    """

    def __init__(self, found: bytes, length: int, top: int) -> None:
        self._found = found
        self._length = length
        self._top = top

    @cached_property
    def scores(self) -> list[float]:
        """One a slot."""
        values = array("f", self._found)
        if sys.byteorder == "big":
            values.byteswap()
        return [*values, *[0.0] * (self._length - len(values))]

    @cached_property
    def top(self) -> list[SlotScore]:
        """The slots that are attended to most, best first."""
        scores = self.scores
        best = heapq.nsmallest(min(self._top, len(scores)), range(len(scores)), key=lambda slot: (-scores[slot], slot))
        return [SlotScore(slot, scores[slot]) for slot in best]

    @property
    def omitted_mass(self) -> float:
        """What all other slots have together."""
        return max(0.0, sum(self.scores) - sum(one.score for one in self.top))


def read_attention(
    scope: RunScope, *, reduce: object, layers: object, heads: object, total: object, top: object
) -> AttentionAsked:
    """Reads the arguments of `on_attention`.

    Raises:
        RuntimeError: The server does without (`capability_missing`).
        ValueError: One is not what it must be (`invalid_argument`).
    """
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
    )
    return AttentionAsked(spec, top)


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
