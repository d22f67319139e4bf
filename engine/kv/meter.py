"""Who pays for which KV pages, and how much that has come to: KiB·ms, whole numbers, exact.

Of those who hold a page one pays for it: an export before what lives, and of equals whoever has held it longest. When
that one lets go, the next pays from that very instant. A page that only the prefix cache holds is paid for by nobody:
it is the pool's overhead. So at every moment

    levels of all accounts + overhead = pages that are not free (and host copies)

and, all of them being integrated over the same clock, the same holds of the charges.
"""

from __future__ import annotations

import enum
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from engine.stats import AccountCharge

if TYPE_CHECKING:
    from engine.kv.block_table import BlockTable


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class Rank(enum.IntEnum):
    """Who pays first."""

    EXPORTED = 0
    LIVE = 1


class Tally:
    """A number of pages, integrated over time.

    Attributes:
        level: Pages now.
    """

    __slots__ = ("_since", "_total", "level")

    def __init__(self, now: int) -> None:
        self.level = 0
        self._total = 0
        self._since = now

    def add(self, count: int, now: int) -> None:
        """Changes the level at an instant, not before the one of the change before."""
        if now != self._since:
            self._total += self.level * (now - self._since)
            self._since = now
        self.level += count

    def total(self, now: int) -> int:
        """Page·ms up to an instant."""
        return self._total + self.level * (now - self._since)


class Payer:
    """Somebody who holds pages: a sequence, a held context, an export. Made by `KVMeter.payer`.

    Attributes:
        account: Label that is charged.
        rank: Whether it pays before others.
    """

    __slots__ = ("_meter", "account", "account_tally", "rank", "tally")

    def __init__(self, meter: KVMeter, account: str, account_tally: Tally, rank: Rank) -> None:
        self.account = account
        self.rank = rank
        self.tally = Tally(meter.now)
        self.account_tally = account_tally
        self._meter = meter

    @property
    def kib_ms(self) -> int:
        """What it has been charged up to the meter's last look at the clock."""
        tally, meter = self.tally, self._meter  # asked for every token: `Tally.total` without the call
        return (tally._total + tally.level * (meter.now - tally._since)) * meter.page_kib

    @property
    def num_bytes(self) -> int:
        """Bytes that it pays for now."""
        return self.tally.level * self._meter.page_kib * 1024

    def add(self, count: int, now: int) -> None:
        """Pays for so many pages more, or fewer, from an instant on."""
        self.tally.add(count, now)
        self.account_tally.add(count, now)


class KVMeter:
    """Payers by page and tallies by account; told of every change by `engine.kv.manager`, which alone knows them.

    Args:
        num_pages: Pages in the pool.
        page_kib: KiB that one page is charged as.
        clock: Whole milliseconds; going back is taken for standing still.

    Attributes:
        now: The instant of the changes that are being made.
        page_kib: See above.
    """

    def __init__(self, *, num_pages: int, page_kib: int = 1, clock: Callable[[], int] = monotonic_ms) -> None:
        self.page_kib = page_kib
        self._clock = clock
        self.now = clock()
        self._first: list[BlockTable | None] = [None] * num_pages
        self._others: dict[int, OrderedDict[BlockTable, None]] = {}
        """Holders of shared pages after the one who pays, in the order in which they inherit."""
        self._accounts: dict[str, Tally] = {}
        self._resident = Tally(self.now)
        self._overhead = Tally(self.now)
        self._num_hosted = 0

    def tick(self) -> None:
        """Looks at the clock: what is changed from here on is changed now."""
        self.now = max(self.now, self._clock())

    def payer(self, account: str, rank: Rank = Rank.LIVE) -> Payer:
        """A new holder of pages, with none yet."""
        tally = self._accounts.get(account)
        if tally is None:
            tally = self._accounts[account] = Tally(self.now)
        return Payer(self, account, tally, rank)

    # -- changes ----------------------------------------------------------------------------------------------------

    def hold(self, page: int, table: BlockTable) -> None:
        """A table has got hold of a page."""
        first = self._first[page]
        if first is None:
            self._first[page] = table
            table.payer.add(1, self.now)
            return
        others = self._others.setdefault(page, OrderedDict())
        if table.payer.rank < first.payer.rank:
            self._first[page] = table
            others[first] = None
            others.move_to_end(first, last=False)
            first.payer.add(-1, self.now)
            table.payer.add(1, self.now)
            return
        others[table] = None
        if table.payer.rank is not Rank.LIVE:
            for other in [other for other in others if other.payer.rank > table.payer.rank]:
                others.move_to_end(other)

    def release(self, page: int, table: BlockTable) -> None:
        """A table has let go of a page; whoever comes next pays for it."""
        others = self._others.get(page)
        if self._first[page] is not table:
            assert others is not None
            del others[table]
        else:
            heir = others.popitem(last=False)[0] if others else None
            self._first[page] = heir
            table.payer.add(-1, self.now)
            if heir is not None:
                heir.payer.add(1, self.now)
        if others is not None and not others:
            del self._others[page]

    def shared(self) -> tuple[list[int], list[BlockTable], list[int]]:
        """Pages that several hold, who pays for each, and how many hold it."""
        others = self._others
        firsts = [first for page in others if (first := self._first[page]) is not None]
        return list(others), firsts, [1 + len(each) for each in others.values()]

    def host(self, payer: Payer, num_pages: int) -> None:
        """A payer has so many pages more, or fewer, in host memory, each for itself alone."""
        payer.add(num_pages, self.now)
        self._num_hosted += num_pages
        self._resident.add(num_pages, self.now)

    def pool(self, num_taken: int, num_idle: int) -> None:
        """The pool has so many pages that are not free, and of those so many that only the cache holds."""
        self._resident.add(num_taken + self._num_hosted - self._resident.level, self.now)
        self._overhead.add(num_idle - self._overhead.level, self.now)

    # -- sums -------------------------------------------------------------------------------------------------------

    def charges(self) -> Iterator[AccountCharge]:
        """Every account that ever held a page or said it would, up to now."""
        for account, tally in self._accounts.items():
            yield AccountCharge(account, tally.total(self.now) * self.page_kib, tally.level * self.page_kib)

    def charge(self, account: str) -> AccountCharge:
        """One account, up to now."""
        tally = self._accounts.get(account)
        if tally is None:
            return AccountCharge(account, 0, 0)
        return AccountCharge(account, tally.total(self.now) * self.page_kib, tally.level * self.page_kib)

    @property
    def overhead_kib_ms(self) -> int:
        """What nobody was charged for: idle pages of the prefix cache."""
        return self._overhead.total(self.now) * self.page_kib

    @property
    def resident_kib_ms(self) -> int:
        """Integral of all pages that are not free, and of host copies."""
        return self._resident.total(self.now) * self.page_kib

    def check_integrity(self, tables: Iterable[BlockTable], num_taken: int, num_idle: int) -> None:
        """Raises AssertionError unless payers, levels and sums agree with the living tables."""
        holders: dict[int, set[BlockTable]] = {}
        for table in tables:
            for page in table.pages:
                holders.setdefault(page, set()).add(table)
        for page, first in enumerate(self._first):
            known = {*self._others.get(page, ()), *(() if first is None else (first,))}
            assert known == holders.get(page, set()), f"holders of page {page} are not those that the meter knows"
            assert first is None or all(first.payer.rank <= other.payer.rank for other in known)
        levels = Counter(first.payer.account for first in self._first if first is not None)
        num_accounted = sum(tally.level for tally in self._accounts.values())
        assert num_accounted == levels.total() + self._num_hosted
        assert all(tally.level >= levels[account] for account, tally in self._accounts.items())
        assert self._overhead.level == num_idle
        assert self._resident.level == num_taken + self._num_hosted == num_accounted + num_idle
        charged = sum(tally.total(self.now) for tally in self._accounts.values())
        assert charged + self._overhead.total(self.now) == self._resident.total(self.now), "charges do not add up"
