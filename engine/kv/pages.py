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


@dataclass(frozen=True, slots=True)
class Claim:
    """A run of pages, start included, stop excluded, that one sequence hopes to grow into."""

    start: int
    stop: int

    def __contains__(self, page: int) -> bool:
        return self.start <= page < self.stop


class PagePool:
    """Which pages are free, and how many hold each of the others."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = num_pages
        self._refs = [0] * num_pages
        self._free = np.ones(num_pages, dtype=bool)
        self._claimed = np.zeros(num_pages, dtype=bool)

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
        self._free[page] = False
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
            self._free[page] = True
            self.num_free += 1
        return self._refs[page]

    def claim(self, length: int) -> Claim | None:
        """Marks the first run of `length` free, unclaimed pages, else the longest; None if there is none."""
        starts, lengths = _runs(self._free & ~self._claimed)
        if len(starts) == 0:
            return None
        fitting = np.flatnonzero(lengths >= length)
        which = int(fitting[0]) if len(fitting) else int(np.argmax(lengths))
        start = int(starts[which])
        claim = Claim(start, start + min(length, int(lengths[which])))
        self._claimed[claim.start : claim.stop] = True
        return claim

    def unclaim(self, claim: Claim) -> None:
        """Gives up a claim; pages taken under it stay taken."""
        self._claimed[claim.start : claim.stop] = False

    def free_pages(self) -> list[int]:
        """All free pages, for integrity checks."""
        return [int(page) for page in np.flatnonzero(self._free)]

    @property
    def free_mask(self) -> npt.NDArray[np.bool_]:
        """For every page whether it is free; changes with the pool."""
        return self._free

    def may_take(self, page: int, claim: Claim | None) -> bool:
        """True if `page` exists, is free, and is claimed by nobody but the holder of `claim`."""
        if not (page < self.num_pages and self._free[page]):
            return False
        return not self._claimed[page] or (claim is not None and page in claim)

    def _pick(self, claim: Claim | None) -> int:
        if claim is not None and self._free[claim.start : claim.stop].any():
            return claim.start + int(np.argmax(self._free[claim.start : claim.stop]))
        unclaimed = self._free & ~self._claimed
        return int(np.argmax(unclaimed if unclaimed.any() else self._free))


def _runs(mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Start and length of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.view(np.int8), [0]))))
    return edges[::2], edges[1::2] - edges[::2]
