"""Sequences that draw one token together: each on a context of its own, all in the same step.

    lane 0   prompt ██████████ . ▌ t1 ▌ t2 ▌        Each computes its prompt as pages and budget allow, but for the last
    lane 1   prompt ███ . . . .  ▌ t1 ▌ t2 ▌        token, and waits there. From then on all are in every step that
    lane 2   prompt ███████ . .  ▌ t1 ▌ t2 ▌        one of them is in, and every token is appended to all of them.

They enter, yield their pages and end together, so that none ever waits for one that cannot run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.sequence import Sequence


@dataclass(frozen=True, slots=True, eq=False)
class LaneGroup:
    """The lanes of one request.

    Attributes:
        members: In the order of the request's contexts; the first speaks for all.
    """

    members: tuple[Sequence, ...]

    @property
    def first(self) -> Sequence:
        """Who speaks for all."""
        return self.members[0]

    @property
    def last(self) -> Sequence:
        """Whose lane is the last of a step: all others' are there by then."""
        return self.members[-1]

    @property
    def is_level(self) -> bool:
        """True if each has exactly one token to compute, or none has."""
        return all(member.num_pending < 2 for member in self.members)


def portions(group: LaneGroup, budget: int, chunk: Callable[[Sequence, int], int]) -> list[tuple[Sequence, int]]:
    """Who computes how many tokens in a step: all of them up to their last, or nobody his last.

    Args:
        group: All of them run.
        budget: Tokens of the step that are left.
        chunk: Tokens that a sequence may compute at once, of so many.
    """
    pending = [member.num_pending for member in group.members]
    if sum(pending) <= budget:
        counts = [chunk(member, count) if count else 0 for member, count in zip(group.members, pending, strict=True)]
        if counts == pending:
            return [(member, count) for member, count in zip(group.members, counts, strict=True) if count]
    found = []
    for member, num_pending in zip(group.members, pending, strict=True):
        count = min(chunk(member, budget), num_pending - 1) if num_pending > 1 and budget else 0
        if count > 0:
            found.append((member, count))
            budget -= count
    return found
