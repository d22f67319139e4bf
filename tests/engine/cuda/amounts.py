"""How much is tried: all there is on a GPU; interpreted, where a kernel takes seconds, a part that meets everything."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

ON_GPU = os.environ.get("WYE_TEST_DEVICE", "cpu") != "cpu"


def some(everything: T, interpreted: T) -> T:
    """The first on a GPU, else the second."""
    return everything if ON_GPU else interpreted


def pairs(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[Any, Any]]:
    """All pairs on a GPU, else each of the first with two of the second, which take turns."""
    if ON_GPU:
        return list(itertools.product(first, second))
    return [(one, second[(at + turn) % len(second)]) for at, one in enumerate(first) for turn in (0, 1)]
