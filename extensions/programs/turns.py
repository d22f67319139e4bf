"""Which programs compute while KV memory is too short for all of them.

What the contexts of a program hold is kept until others need the memory, and then what was not used for longest goes
first. That serves programs that wait for something. Where all compute in turns and what they hold does not fit, it
serves nobody: each finds gone what it needs next, computes it again, and takes the memory of another for that.

So a program that finds KV gone which it had has the youngest of those that compute parked: at its next generation
that one lets go of what its contexts hold, whose whole pages stay findable until somebody needs them, and waits. What
is left fits, and is computed once. The oldest of those that wait goes on when

- one that computed has ended, and held as much,
- memory is free, for it and for others to grow,
- most of those that may compute do something else: then memory is not what is short.

Every account parks its own youngest, the one with most programs first. The last one that computes is never parked, so
that all come to their end.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.client import EngineClient
    from engine.stats import EngineStats

SHORT = 10
"""Memory is short while less than one part in so many is free, or kept for nothing but its chance to be found again."""
ROOM = 4
"""One part in so many must be free beside what a parked program holds, for those that compute to grow."""
WORKING_S = 5.0
"""A program is one of those that compute as long as its last generation ended no longer ago ..."""
BUSY_S = 1.0
"""... and does nothing else yet as long as that was no longer ago: many end generations in the same step."""
REVIEW_S = 0.5
"""How often it is looked whether a parked program may go on, beside every time that one stops to compute."""


class Place:
    """One program among those that compute, with all that it starts.

    Attributes:
        number: The older, the smaller.
        account: Who pays, from its first turn on.
        is_parked: It may begin no generation.
        num_pages: What its contexts held when it last had to do with being parked, at most.
        gave_up_at: The engine's step, as told by then, when it let go of that; -1 while it has not.
        is_steady: It began the newest of its generations hardly after the end of another.
        num_computing: Generations of it that go on.
        num_waiting: Generations of it that wait for it to be parked no more.
        ended_s: When its last generation ended.
        may_go: Wakes those that wait.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.account = ""
        self.count_pages: Callable[[], int] = int
        self.is_parked = False
        self.num_pages = 0
        self.gave_up_at = -1
        self.is_steady = False
        self.num_computing = 0
        self.num_waiting = 0
        self.ended_s = -math.inf
        self.may_go = asyncio.Event()

    def is_computing(self, since_s: float) -> bool:
        """It computes, or is about to, or did after that time."""
        return self.num_computing > 0 or self.num_waiting > 0 or self.ended_s > since_s


class Turns:
    """The programs of one gateway process, on one engine.

    Args:
        engine: Tells how much memory there is.
        clock: Seconds, monotonic.
    """

    def __init__(self, engine: EngineClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._places: set[Place] = set()
        self._num_places = 0
        self._waiting: dict[Place, None] = {}
        self._judged_at = -1
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_parked(self) -> int:
        """Programs that wait for memory."""
        return len(self._waiting)

    def place(self) -> Place:
        """For a program that begins; it counts from its first turn on."""
        self._num_places += 1
        return Place(self._num_places)

    def end(self, place: Place, num_pages: int) -> None:
        """A program has ended, and held so many pages."""
        self._places.discard(place)
        if self._waiting and not place.is_parked:
            first = self._first()
            if first.num_pages <= num_pages:
                self._let_go(first)
        self._review()

    @asynccontextmanager
    async def turn(
        self, place: Place, account: str, *, count_pages: Callable[[], int], give_up: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """A program computes inside the `with`, and waits before it while it is parked.

        Args:
            place: Its own.
            account: Who pays.
            count_pages: Says what its contexts hold, at most.
            give_up: Lets go of that.
        """
        if place not in self._places:
            self._places.add(place)
            place.account, place.count_pages = account, count_pages
            # Whoever came before goes on before it.
            place.is_parked = any(other.account == account for other in self._waiting)
        place.is_steady = place.is_computing(self._clock() - WORKING_S)
        if place.is_parked:
            await self._wait(place, give_up)
        place.num_computing += 1
        try:
            yield
        finally:
            place.num_computing -= 1
            place.ended_s = self._clock()
            self._review()

    def lost(self, place: Place) -> None:
        """A program has found KV gone that it had: one of those that compute is parked, if memory is short for them.

        It is as it should be where the program did something else for a while.
        """
        working = self._working()
        if not place.is_steady or not self._is_short(working):
            return
        counts = Counter(place.account for place in working)
        account, count = counts.most_common(1)[0] if counts else ("", 0)
        if count < 2:
            return
        youngest = max((place for place in working if place.account == account), key=lambda place: place.number)
        youngest.is_parked, youngest.num_pages, youngest.gave_up_at = True, youngest.count_pages(), -1
        youngest.may_go.clear()

    async def _wait(self, place: Place, give_up: Callable[[], Awaitable[None]]) -> None:
        place.num_waiting += 1
        try:
            await give_up()
            place.num_pages, place.gave_up_at = place.count_pages(), self._engine.stats.num_steps
            while place.is_parked:
                self._waiting[place] = None
                self._review()
                await place.may_go.wait()
        finally:
            place.num_waiting -= 1
            if not place.num_waiting:
                self._waiting.pop(place, None)

    def _review(self) -> None:
        """Lets go on whoever may, and sees to it that this is looked at again while somebody waits."""
        while self._waiting and self._may_go(self._first()):
            self._let_go(self._first())
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REVIEW_S, self._look_again)
        elif not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = None
        self._review()

    def _first(self) -> Place:
        """Whose turn it is among those that wait: of the account with fewest that compute, the oldest."""
        counts = Counter(place.account for place in self._working())
        return min(self._waiting, key=lambda place: (counts[place.account], place.number))

    def _may_go(self, first: Place) -> bool:
        working, since_s = self._working(), self._clock() - BUSY_S
        if 2 * sum(place.is_computing(since_s) for place in working) <= len(working):
            return True
        stats = self._engine.stats
        if stats.num_steps == self._judged_at:  # what the last one that was let go takes is not told yet
            return False
        if self._num_free(stats) < first.num_pages + stats.num_pages // ROOM:
            return False
        self._judged_at = stats.num_steps
        return True

    def _let_go(self, place: Place) -> None:
        place.is_parked = False
        place.may_go.set()
        self._waiting.pop(place, None)

    def _working(self) -> list[Place]:
        """Those that may compute and do, or did a moment ago."""
        since_s = self._clock() - WORKING_S
        return [place for place in self._places if not place.is_parked and place.is_computing(since_s)]

    def _is_short(self, working: Collection[Place]) -> bool:
        """Whether memory is short for those that compute.

        What those hold that do something else is theirs to take, and what is parked is given up, or about to be.
        """
        stats = self._engine.stats
        num_free = self._num_free(stats)
        for place in self._places.difference(working):
            if not place.is_parked:
                num_free += place.count_pages()
            elif place.gave_up_at in (-1, stats.num_steps):
                num_free += place.num_pages
        return num_free * SHORT < stats.num_pages

    @staticmethod
    def _num_free(stats: EngineStats) -> int:
        return stats.num_pages - stats.num_used_pages
