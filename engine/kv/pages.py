"""Reference-counted KV pages, handed out so that one sequence's pages lie side by side where that is possible.

Consecutive pages are one view of the storage, which a CPU reads without gathering (see `engine.attention.cpu`). A
sequence therefore claims, without owning, a run of free pages as long as it may grow; others use claimed pages only
when nothing else is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import OutOfPages
from engine.kv.free_runs import FreeRuns


@dataclass(frozen=True, slots=True)
class Claim:
    """A run of pages, start included, stop excluded, that one sequence hopes to grow into."""

    start: int
    stop: int

    def __contains__(self, page: int) -> bool:
        return self.start <= page < self.stop


class PagePool:
    """Which pages are free, and how many hold each of the others.

    Nothing here takes longer the more pages there are, except what is asked of all of them at once.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = num_pages
        self._refs = [0] * num_pages
        # Looked at one by one as bytes, which is quick, and all at once as arrays of the same memory.
        self._is_free = bytearray(b"\1") * num_pages
        self._is_claimed = bytearray(num_pages)
        self._free = np.frombuffer(self._is_free, dtype=np.bool_)
        self._claimed = np.frombuffer(self._is_claimed, dtype=np.bool_)
        self._runs = FreeRuns(num_pages)

    def refs(self, page: int) -> int:
        """How many hold `page`; 0 if it is free."""
        return self._refs[page]

    def allocate(self, preferred: int | None = None, claim: Claim | None = None) -> int:
        """Takes one free page with one reference.

        Args:
            preferred: Taken if it is free and nobody else claims it.
            claim: The caller's own claim.

        Raises:
            OutOfPages: None is free.
        """
        if self.num_free == 0:
            raise OutOfPages(1, 0)
        page = preferred if preferred is not None and self.may_take(preferred, claim) else self._pick(claim)
        if not self._is_claimed[page]:
            self._runs.take(page, page + 1)
        self._is_free[page] = False
        self._refs[page] = 1
        self.num_free -= 1
        return page

    def share(self, page: int) -> None:
        """Adds a reference to a page in use."""
        assert self._refs[page] > 0, f"page {page} is free"
        self._refs[page] += 1

    def release(self, page: int) -> int:
        """Drops one reference and returns how many are left; at 0 the page is free."""
        assert self._refs[page] > 0, f"page {page} is free"
        self._refs[page] -= 1
        if self._refs[page] == 0:
            self._is_free[page] = True
            self.num_free += 1
            if not self._is_claimed[page]:
                self._runs.give(page, page + 1)
        return self._refs[page]

    def claim(self, length: int) -> Claim | None:
        """Marks a run of `length` free, unclaimed pages, else one of the longest; None if there is none."""
        run = self._runs.find(max(1, length))
        if run is None:
            return None
        claim = Claim(run[0], min(run[0] + max(1, length), run[1]))
        self._runs.take(claim.start, claim.stop)
        self._claimed[claim.start : claim.stop] = True
        return claim

    def unclaim(self, claim: Claim) -> None:
        """Gives up a claim; pages taken under it stay taken."""
        self._claimed[claim.start : claim.stop] = False
        is_free, start = self._is_free, claim.start
        while (start := is_free.find(1, start, claim.stop)) >= 0:
            taken = is_free.find(0, start, claim.stop)
            stop = claim.stop if taken < 0 else taken
            self._runs.give(start, stop)
            start = stop

    def free_pages(self) -> list[int]:
        """All free pages, for integrity checks."""
        return [int(page) for page in np.flatnonzero(self._free)]

    @property
    def free_mask(self) -> npt.NDArray[np.bool_]:
        """For every page whether it is free; changes with the pool."""
        return self._free

    def may_take(self, page: int, claim: Claim | None) -> bool:
        """True if `page` exists, is free, and is claimed by nobody but the holder of `claim`."""
        if not (page < self.num_pages and self._is_free[page]):
            return False
        return not self._is_claimed[page] or (claim is not None and page in claim)

    def check_integrity(self) -> None:
        """Raises AssertionError if what is known of runs is not what pages say."""
        assert self.num_free == int(self._free.sum())
        assert list(self._runs) == _runs(self._free & ~self._claimed)

    def _pick(self, claim: Claim | None) -> int:
        if claim is not None:
            own = self._is_free.find(1, claim.start, claim.stop)
            if own >= 0:
                return own
        page = self._runs.first()
        return self._is_free.find(1) if page is None else page


def _runs(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Start and stop of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return [(int(start), int(stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
