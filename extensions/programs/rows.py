"""What a script says of the rows of a pass, checked and put in the order of their slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.forward.shapes import MAX_POSITION, MAX_ROWS
from engine.programs.errors import ProgramMisused
from engine.request import SiteChange
from extensions.programs.faults import invalid
from extensions.programs.options import token_ids

GEOMETRY = ("positions", "slots", "kv_len", "fold")
"""What `state` knows of."""

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from engine.programs.binding import BoundProgram

Bits: TypeAlias = "npt.NDArray[np.bool_]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The rows of all lanes, end to end, as a script gave them.

    Attributes:
        tokens: One a row.
        starts: Where each lane begins, and the end of the last.
        positions, slots: One a row, if given.
        kv_len: One a lane, if given.
        mask: One a row, if given.
        rule: Or what works it out.
        changes: What adapters do to the rows of a lane, by its number.
        readout: Rows that are read, if given.
    """

    tokens: Sequence[int]
    starts: Sequence[int]
    positions: Sequence[int] | None = None
    slots: Sequence[int] | None = None
    kv_len: Sequence[int] | None = None
    mask: Sequence[Any] | None = None
    rule: BoundProgram | None = None
    changes: Mapping[int, Sequence[SiteChange]] = field(default_factory=dict)
    readout: Sequence[int] | None = None

    @property
    def num_lanes(self) -> int:
        """How many contexts they follow."""
        return len(self.starts) - 1

    @property
    def read(self) -> Sequence[int]:
        """Rows that are read: the last of each lane unless others were named."""
        return [stop - 1 for stop in self.starts[1:]] if self.readout is None else self.readout


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneRows:
    """Those of one lane, in the order of their slots.

    Attributes:
        tokens: One a row.
        positions: One a row; None for those of any history.
        sights: See `engine.forward.shapes`; empty if nothing is hidden.
        places: Where each row as the script counts them has come to.
        changes: What adapters do to them.
    """

    tokens: list[int]
    positions: list[int] | None
    sights: list[bytes]
    places: dict[int, int]
    changes: list[SiteChange] = field(default_factory=list)


def read_rows(tokens: object, indptr: object) -> Rows:
    """Reads the arguments of `embed`.

    Raises:
        ValueError: They are no rows (`invalid_argument`).
    """
    ids = token_ids(tokens, "tokens")
    starts = [0, len(ids)] if indptr is None else integers(indptr, "indptr")
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(ids) or any(a >= b for a, b in pairwise(starts)):
        raise invalid(f"indptr must rise from 0 to the {len(ids)} tokens there are, a token a lane at least")
    return Rows(tokens=ids, starts=starts)


def read_geometry(geometry: object) -> dict[str, Any]:
    """Reads the second argument of `state`.

    Raises:
        ValueError: It is none (`invalid_argument`).
    """
    if geometry is None:
        return {}
    if not isinstance(geometry, Mapping) or any(name not in GEOMETRY for name in geometry):
        raise invalid(f"geometry must be a dict with some of {', '.join(GEOMETRY)}")
    found: dict[str, Any] = {}
    for name in ("positions", "slots", "kv_len"):
        if geometry.get(name) is not None:
            found[name] = integers(geometry[name], name)
    return found


def integers(value: object, name: str) -> list[int]:
    """A list of whole numbers.

    Raises:
        ValueError: It is none (`invalid_argument`).
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise invalid(f"{name} must be a list of whole numbers")
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
        raise invalid(f"{name} must be a list of whole numbers")
    return list(value)


def lane_rows(rows: Rows, histories: Sequence[Sequence[int]]) -> list[LaneRows]:
    """The rows of each lane, for contexts of these tokens. A mask rule may take a while.

    Raises:
        ValueError: There are too few or too many of something, or a row sees what is not there (`invalid_argument`).
    """
    count = len(rows.tokens)
    if rows.num_lanes != len(histories):
        raise invalid(f"there are {rows.num_lanes} lanes of tokens and {len(histories)} contexts")
    for name, given, wanted in (
        ("positions", rows.positions, count),
        ("slots", rows.slots, count),
        ("kv_len", rows.kv_len, len(histories)),
        ("mask", rows.mask, count),
    ):
        if given is not None and len(given) != wanted:
            raise invalid(f"{name} has {len(given)} entries, {wanted} are wanted")
    if any(not 0 <= row < count for row in rows.read):
        raise invalid(f"readout names rows from 0 to {count - 1}")
    return [_lane(rows, lane, history) for lane, history in enumerate(histories)]


def _lane(rows: Rows, lane: int, history: Sequence[int]) -> LaneRows:
    first, last = rows.starts[lane], rows.starts[lane + 1]
    length = len(history)
    order = list(range(first, last))
    if rows.slots is not None:
        if sorted(rows.slots[first:last]) != list(range(length, length + last - first)):
            raise invalid(
                f"slots of lane {lane} must be each of {length} to {length + last - first - 1} once: they follow its "
                "history"
            )
        order.sort(key=rows.slots.__getitem__)
    changes = list(rows.changes.get(lane, ()))
    positions = None if rows.positions is None else [rows.positions[row] for row in order]
    if positions is None and changes:  # rows that are others than any history's are said to be so
        positions = list(range(length, length + len(order)))
    return LaneRows(
        tokens=[rows.tokens[row] for row in order],
        positions=positions,
        sights=_sights(rows, lane, order, history),
        places={row: place for place, row in enumerate(order)},
        changes=changes,
    )


def _sights(rows: Rows, lane: int, order: Sequence[int], history: Sequence[int]) -> list[bytes]:
    if rows.mask is None and rows.rule is None and rows.kv_len is None:
        return []
    import numpy as np  # here: gateways do without it until a script has masks

    length = len(history)
    end = length + len(order)
    if len(order) > MAX_ROWS:
        raise invalid(f"lane {lane} has {len(order)} rows, at most {MAX_ROWS} can have a mask")
    limit = end if rows.kv_len is None else rows.kv_len[lane]
    if not 0 <= limit <= end:
        raise invalid(f"kv_len of lane {lane} must be between 0 and {end}, got {limit}")
    ruled = None if rows.rule is None else _ruled(rows, rows.rule, lane, order, history)
    sights = []
    for place, row in enumerate(order):
        own = length + place
        if ruled is None:
            seen = _seen(None if rows.mask is None else rows.mask[row], row, own)
        else:
            seen = ruled[place, : own + 1]
            seen[own] = True
        seen[limit:own] = False
        sights.append(np.packbits(seen, bitorder="little").tobytes())
    return sights


def _ruled(rows: Rows, rule: BoundProgram, lane: int, order: Sequence[int], history: Sequence[int]) -> Bits:
    """[rows of the lane, slots], what a rule says."""
    from engine.programs.masks import MaskLane, seen_by_rows

    plain = range(len(history), len(history) + len(order))
    token_ids = [*history, *(rows.tokens[row] for row in order)]
    positions = plain if rows.positions is None else [rows.positions[row] for row in order]
    if any(not 0 <= one <= MAX_POSITION for one in positions):
        raise invalid(f"positions must be between 0 and {MAX_POSITION}")
    try:
        return seen_by_rows(rule, MaskLane(number=lane, token_ids=token_ids, positions=positions))
    except ProgramMisused as error:
        raise invalid(str(error)) from None
    except OverflowError:
        raise invalid("tokens has a number that is no token id") from None


def _seen(given: Any, row: int, own: int) -> Bits:
    """[own + 1], the slots that a row sees; it always sees its own."""
    import numpy as np

    seen = np.zeros(own + 1, dtype=bool)
    if given is None:
        seen[:] = True
        return seen
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Sequence):
        raise invalid(f"mask of row {row} must be a list of bits or of [start, stop] spans, or None for all before it")
    if all(isinstance(one, Sequence) and not isinstance(one, str) for one in given):
        for span in given:
            start, stop = _span(span, row)
            _check_end(stop, row, own)
            seen[start:stop] = True
    else:
        if not all(isinstance(one, int) and one in (0, 1) for one in given):
            raise invalid(f"mask of row {row} must have bits: True or False, 1 or 0")
        _check_end(max((at + 1 for at, one in enumerate(given) if one), default=0), row, own)
        bits = np.array([bool(one) for one in given[: own + 1]], dtype=bool)
        seen[: len(bits)] = bits
    seen[own] = True
    return seen


def _span(span: Any, row: int) -> tuple[int, int]:
    found = integers(span, f"a span in the mask of row {row}")
    if len(found) != 2 or not 0 <= found[0] <= found[1]:
        raise invalid(f"a span in the mask of row {row} must be [start, stop]")
    return found[0], found[1]


def _check_end(stop: int, row: int, own: int) -> None:
    if stop > own + 1:
        raise invalid(f"row {row} is in slot {own} and cannot see slot {stop - 1}, which is written after it")


def read_fold(value: object, num_lanes: int) -> str | list[int | None]:
    """How many rows of each lane stay: the name of a probe that says so, or a number a lane, None for all.

    Raises:
        ValueError: It is neither (`invalid_argument`).
    """
    if isinstance(value, str) and value.startswith("probe."):
        return value.removeprefix("probe.")
    each = value if isinstance(value, list | tuple) else [value] * num_lanes
    if len(each) != num_lanes:
        raise invalid(f"fold has {len(each)} entries, {num_lanes} are wanted")
    return [_fold(one) for one in each]


def _fold(value: object) -> int | None:
    if value == "all":
        return None
    if value in ("none", None):
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid('fold must be "all", "none", a number of rows, or "probe.x" for what the program says')
    return value
