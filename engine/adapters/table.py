"""Which adapters an engine has, by the names that requests use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import UnknownAdapter
from engine.request import AdapterInfo


class AdapterPlace(NamedTuple):
    """One adapter as sequences carry it.

    Attributes:
        number: Its place among the engine's; -1 for the model alone.
        digest: Of its content; empty for the model alone.
        held: Keeps it there, if it is of a pass.
    """

    number: int = -1
    digest: str = ""
    held: object = None


NO_ADAPTER = AdapterPlace()


class AdapterTable:
    """Adapters by name."""

    def __init__(self, adapters: Sequence[AdapterInfo] = ()) -> None:
        self._places = {one.name: AdapterPlace(number, one.digest) for number, one in enumerate(adapters)}

    def find(self, name: str) -> AdapterPlace:
        """The adapter of that name; none for an empty name.

        Raises:
            UnknownAdapter: There is none of that name.
        """
        if not name:
            return NO_ADAPTER
        place = self._places.get(name)
        if place is None:
            raise unknown_adapter(name, list(self._places))
        return place


def unknown_adapter(name: str, known: Sequence[str]) -> UnknownAdapter:
    """The error for a name that no adapter has."""
    there = f"loaded are {', '.join(sorted(known))}" if known else "none is loaded"
    return UnknownAdapter(f"The adapter {name!r} does not exist; {there}.", "adapter")
