"""Which lane computes what a program asks for: one predicate over the features that a computation uses."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Lane = Literal["fused", "device", "host"]
"""From the fastest to the slowest: the engine's own loop, a program compiled into it, the script for every step."""

_ORDER: tuple[Lane, ...] = ("fused", "device", "host")


class Feature(enum.StrEnum):
    """What a computation uses beyond sampling parameters, constraints and stops, which every lane has."""

    STEPS = "steps"
    DISTRIBUTION = "distribution"
    PROGRAM = "program"
    GUESSING_PROGRAM = "guessing_program"
    GUESSES = "guesses"
    FORWARD = "forward"


_REASONS: dict[Feature, tuple[Lane, str]] = {
    Feature.STEPS: ("host", "the script decides each step (ctx.generation)"),
    Feature.DISTRIBUTION: ("host", "the script reads a distribution (ctx.next)"),
    Feature.PROGRAM: ("device", "a device program draws the tokens (sampler)"),
    Feature.GUESSING_PROGRAM: ("device", "a device program guesses tokens (drafter)"),
    Feature.GUESSES: ("host", "the script guesses tokens (drafter)"),
    Feature.FORWARD: ("device", "a device program reads the lanes of a forward pass (lm.forward)"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """A lane, and why it is not a faster one.

    Attributes:
        lane: Where the work runs.
        reason: Empty for the fused lane.
    """

    lane: Lane
    reason: str = ""


FUSED = Plan("fused")


def plan(features: Iterable[Feature]) -> Plan:
    """The fastest lane that can honour all features."""
    chosen = FUSED
    for feature in features:
        lane, reason = _REASONS[feature]
        if is_slower(lane, chosen.lane):
            chosen = Plan(lane, reason)
    return chosen


def is_slower(lane: Lane, than: Lane) -> bool:
    """True if `lane` costs more a token."""
    return _ORDER.index(lane) > _ORDER.index(than)


class PathRecord:
    """The lanes that a run has taken so far.

    Attributes:
        reason: Of the first work that was not fused; empty if there was none.
    """

    def __init__(self) -> None:
        self._lanes: set[Lane] = set()
        self.reason = ""

    def note(self, taken: Plan) -> None:
        """Takes down where a piece of work runs."""
        self._lanes.add(taken.lane)
        self.reason = self.reason or taken.reason

    @property
    def path(self) -> Literal["fused", "device", "host", "mixed"]:
        """One lane's name if all work took it; a run without any work is fused."""
        if len(self._lanes) > 1:
            return "mixed"
        return next(iter(self._lanes), "fused")
