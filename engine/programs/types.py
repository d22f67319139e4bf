"""Types of device programs: what kind of number, and along which axis.

Letters: V vocabulary, T tokens of the history, K a number fixed in the source.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

VOCAB = "V"
"""Axis of one value per token of the vocabulary."""
HISTORY = "T"
"""Axis of one value per token of the history; its length changes from step to step."""


class Kind(enum.IntEnum):
    """Kinds of numbers, narrow to wide: an operation on two kinds takes place in the wider one."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    KEY = 3
    """A random key: handed to operations that draw, and nothing else."""

    @property
    def label(self) -> str:
        """What messages call it."""
        return ("bool", "i64", "f32", "key")[self]


Axis = None | str | int
"""None for a single value, `VOCAB`, `HISTORY`, or a length fixed in the source."""


@dataclass(frozen=True, slots=True)
class Type:
    """Type of one value.

    Attributes:
        kind: Of its numbers.
        axis: What it has one number for.
        rows: Of a matrix, which has one for each row and each place of the axis.
    """

    kind: Kind
    axis: Axis = None
    rows: int | None = None

    def __str__(self) -> str:
        if self.rows is not None:
            return f"{self.kind.label}[{self.rows}, {self.axis}]"
        return self.kind.label if self.axis is None else f"{self.kind.label}[{self.axis}]"

    def of(self, kind: Kind) -> Type:
        """The same shape in another kind."""
        return Type(kind, self.axis)


BOOL = Type(Kind.BOOL)
INT = Type(Kind.INT)
FLOAT = Type(Kind.FLOAT)
KEY = Type(Kind.KEY)


class Mismatch(Exception):
    """Operands that do not go together; the text says why."""


def common_axis(*types: Type) -> Axis:
    """The axis of an element-wise result: single values go with everything, axes only with themselves.

    Raises:
        Mismatch: Two axes differ.
    """
    axes = {one.axis for one in types if one.axis is not None}
    if len(axes) > 1:
        raise Mismatch(f"cannot combine {' and '.join(sorted(str(one) for one in types if one.axis is not None))}")
    return axes.pop() if axes else None


def common_kind(*types: Type, at_least: Kind = Kind.BOOL) -> Kind:
    """The widest kind.

    Raises:
        Mismatch: One of them is a key.
    """
    kind = max(at_least, *(one.kind for one in types))
    if kind is Kind.KEY:
        raise Mismatch("a random key can only be handed to an operation that draws")
    return kind
