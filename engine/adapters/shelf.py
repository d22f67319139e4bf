"""Adapters by their numbers: those that are loaded, and those that passes put together for their own rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from weakref import WeakValueDictionary

from engine.adapters.changes import Adapter


class AdapterShelf:
    """What steps look adapters up in. What a pass has put together is there as long as somebody holds it.

    Attributes:
        loaded: Those of the engine.
    """

    def __init__(self, loaded: Sequence[Adapter] = ()) -> None:
        self.loaded = loaded
        self._made: WeakValueDictionary[int, Adapter] = WeakValueDictionary()
        self._numbers = count(len(loaded))

    def __getitem__(self, number: int) -> Adapter:
        """The adapter of a number."""
        return self.loaded[number] if number < len(self.loaded) else self._made[number]

    def is_behind_plain(self, number: int) -> bool:
        """Whether rows of that adapter stand behind what the model alone has computed."""
        return self[number].is_behind_plain

    def put(self, adapter: Adapter) -> int:
        """Gives an adapter a number of its own."""
        number = next(self._numbers)
        self._made[number] = adapter
        return number

    @property
    def num_made(self) -> int:
        """Those of passes that are there now."""
        return len(self._made)
