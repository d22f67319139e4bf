"""Runs of free pages that nobody claims, found by length without looking at the rest of the pool.

A run is known at both of its ends, so that pages that become free join their neighbours in constant time (boundary
tags: Knuth, The Art of Computer Programming, volume 1, 2.5), and under the power of two that its length reaches, so
that one that is long enough is found at once (segregated fits). Pools of a GPU have a hundred thousand pages, and in a
server that has run for a while nearly all hold what may be asked for again: whoever looked through them for each page
that a sequence grows by would take longer than the step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

_LOOKED_AT = 16
"""Runs of one class that are compared, where one of them may be long enough and another not."""


class FreeRuns:
    """Disjoint runs of pages; two of them never touch.

    Args:
        num_pages: Pages there are; at first all in one run.
    """

    def __init__(self, num_pages: int) -> None:
        self._stops: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        # Of each class the starts, in the order in which they came: a dict is an ordered set, quick at its end.
        self._classes: list[dict[int, None]] = [{} for _ in range(num_pages.bit_length() + 1)]
        if num_pages:
            self._put(0, num_pages)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Start and stop of each, by start."""
        return iter(sorted(self._stops.items()))

    def find(self, length: int) -> tuple[int, int] | None:
        """A run of at least `length` pages, a short one rather than a long one; else one of the longest.

        Returns:
            Its start and stop; None if there is none at all.
        """
        fits = (length - 1).bit_length()  # whatever is in this class or a higher one is long enough
        for starts in self._classes[fits:]:
            if starts:
                return self._run(_newest(starts))
        for starts in reversed(self._classes[:fits]):
            if starts:
                _newest(starts)
                some = islice(reversed(starts), _LOOKED_AT)
                return max((self._run(start) for start in some), key=lambda run: run[1] - run[0])
        return None

    def first(self) -> int | None:
        """First page of a run, of the shortest ones; None if there is none."""
        for starts in self._classes:
            if starts:
                return _newest(starts)
        return None

    def give(self, start: int, stop: int) -> None:
        """Adds pages that are in no run."""
        if start == stop:
            return
        before, after = self._starts.get(start), self._stops.get(stop)
        if before is not None:
            self._drop(before, start)
            start = before
        if after is not None:
            self._drop(stop, after)
            stop = after
        self._put(start, stop)

    def take(self, start: int, stop: int) -> None:
        """Removes pages that are in one run; where they do not begin it, its start is looked for page by page."""
        first = start
        while first not in self._stops:
            first -= 1
            assert first >= 0, f"pages {start} to {stop} are not free"
        last = self._stops[first]
        assert last >= stop, f"pages {start} to {stop} are not all free"
        self._drop(first, last)
        if first < start:
            self._put(first, start)
        if stop < last:
            self._put(stop, last)

    def _run(self, start: int) -> tuple[int, int]:
        return start, self._stops[start]

    def _put(self, start: int, stop: int) -> None:
        self._stops[start] = stop
        self._starts[stop] = start
        self._classes[(stop - start).bit_length() - 1][start] = None

    def _drop(self, start: int, stop: int) -> None:
        del self._stops[start], self._starts[stop]
        del self._classes[(stop - start).bit_length() - 1][start]


def _newest(starts: dict[int, None]) -> int:
    """The one that came last. Looked up from either side, a dict would step over all that has been removed there."""
    start, _ = starts.popitem()
    starts[start] = None
    return start
