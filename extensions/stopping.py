"""Finds stop strings in text that arrives in pieces, and holds back what could be the beginning of one.

The stop strings form an Aho-Corasick automaton (doi 10.1145/360825.360855) whose nodes are made when text first
reaches them: a request with a thousand long stop strings costs one sort, and each character one dictionary look-up.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Where a stop string was found; positions count characters of everything pushed.

    Attributes:
        stop: The stop string; None if something else ended the text.
        start: Position of its first character.
        end: Position after its last character.
    """

    stop: str | None
    start: int
    end: int


class _Node:
    """A prefix of some stop string: the stop strings `[low, high)` in sorted order begin with it."""

    __slots__ = ("depth", "fallback", "found", "high", "low", "next")

    def __init__(self, depth: int, low: int, high: int) -> None:
        self.depth = depth
        self.low = low
        self.high = high
        self.next: dict[str, _Node] = {}
        self.fallback: _Node | None = None
        self.found: str | None = None


class StopStrings:
    """A set of stop strings, ready to be searched for. Share one among the continuations of a request."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = sorted(set(stops))
        if "" in self._stops:
            raise ValueError("a stop string must not be empty")
        self.root = _Node(0, 0, len(self._stops))
        first = sorted({stop[0] for stop in self._stops})
        self._first_char = re.compile(f"[{''.join(map(re.escape, first))}]") if first else None

    def __bool__(self) -> bool:
        return bool(self._stops)

    def find_first_char(self, text: str, start: int) -> int:
        """Position from `start` on of a character that begins some stop string; `len(text)` if there is none."""
        found = self._first_char.search(text, start) if self._first_char is not None else None
        return len(text) if found is None else found.start()

    def advance(self, node: _Node, char: str) -> _Node:
        """The longest prefix of any stop string that the text ends with, after `node` and then `char`."""
        reached = node.next.get(char)
        return self._reach(node, char) if reached is None else reached

    def _reach(self, node: _Node, char: str) -> _Node:
        """Fills in the transition of `node` by `char`, and those of its fallbacks that it rests on."""
        rests: list[tuple[_Node, _Node | None]] = []
        current: _Node | None = node
        known = None
        while current is not None and known is None:
            rests.append((current, self._child(current, char)))
            current = current.fallback
            known = None if current is None else current.next.get(char)
        target = self.root if known is None else known
        for parent, child in reversed(rests):
            if child is not None:
                child.fallback = target
                child.found = child.found or target.found
                target = child
            parent.next[char] = target
        return target

    def _child(self, node: _Node, char: str) -> _Node | None:
        depth = node.depth
        low = bisect_left(self._stops, char, node.low, node.high, key=lambda stop: stop[depth : depth + 1])
        high = bisect_right(self._stops, char, low, node.high, key=lambda stop: stop[depth : depth + 1])
        if low == high:
            return None
        child = _Node(depth + 1, low, high)
        if len(self._stops[low]) == child.depth:
            child.found = self._stops[low]
        return child


class StopMatcher:
    """Splits one growing text into what may be shown and what must wait.

    The match that completes first wins; of those that complete with the same character, the longest. The outcome is
    the same however the text is cut into pieces.

    Attributes:
        is_idle: There is nothing to find.
    """

    def __init__(self, stops: StopStrings, *, include_stop: bool = False) -> None:
        self._stops = stops
        self.is_idle = not stops
        self._include_stop = include_stop
        self._node = stops.root
        self._held = ""
        self._num_chars = 0

    @property
    def is_holding(self) -> bool:
        """True while text is held back that could be the beginning of a stop string."""
        return bool(self._held)

    def push(self, text: str, *, active: bool = True) -> tuple[str, StopMatch | None]:
        """Takes more text.

        Args:
            text: New text, after everything pushed before.
            active: False if no stop string may end inside `text`; one that begins in it can still end later.

        Returns:
            Text that may be shown now, and the match that ended the text, if any. After a match, push no more.
        """
        if self.is_idle:
            return text, None
        at, node, root = 0, self._node, self._stops.root
        while at < len(text):
            if node is root:
                at = self._stops.find_first_char(text, at)
                if at == len(text):
                    break
            node = self._stops.advance(node, text[at])
            at += 1
            if node.found is not None and active:
                return self._end(text, at, node.found)
        self._node = node
        return self._keep(text, node.depth), None

    def skip(self, num_chars: int) -> None:
        """Counts text that is not searched; nothing may have been held back before it."""
        self._num_chars += num_chars

    def flush(self) -> str:
        """Returns what was held back; the text ends here."""
        held, self._held, self._node = self._held, "", self._stops.root
        return held

    def _keep(self, text: str, num_held: int) -> str:
        self._num_chars += len(text)
        text = self._held + text
        border = len(text) - num_held
        self._held = text[border:]
        return text[:border]

    def _end(self, text: str, at: int, stop: str) -> tuple[str, StopMatch]:
        end = self._num_chars + at
        match = StopMatch(stop, end - len(stop), end)
        visible = self._held + text[:at]
        self._held = ""
        return visible if self._include_stop else visible[: len(visible) - len(stop)], match
