"""The one door to the KV pool: block tables in, pages reserved, shared, cached, freed.

Who holds the pages of one sequence of 70 tokens (page size 16) whose first 32 came from the cache:

    position   0        16       32       48       64   70
    page       [ cached ][ cached ][  own  ][  own  ][ own  ]
    held by      table+tree  table+tree  table     table    table      while it runs
                 table+tree  ...         table+tree, up to the last full page       once its prompt is computed
                 tree        ...         tree, up to the last full page             after it ended
    the last, partly filled page is freed at the end: only full pages have a name

Not here: tensors (`engine.kv.storage`) and when to do what (`engine.scheduling`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import OutOfPages
from engine.kv.block_table import BlockTable
from engine.kv.identity import page_key, root_key
from engine.kv.meter import KVMeter, Payer, monotonic_ms
from engine.kv.overview import CACHED, FREE
from engine.kv.pages import Claim, PagePool
from engine.kv.prefix import PrefixCache

PageCopy = tuple[int, int]
"""(source, destination): a page to be copied on the device before the step that writes the destination."""


GROWTH_PAGES = 32
"""Pages beyond its present length that a sequence is given room for."""


@dataclass(frozen=True, slots=True)
class PrefixName:
    """What a token history is called in the cache.

    Attributes:
        root: Key before its first page.
        num_tokens: Length of the history.
        keys: Of its leading full pages.
    """

    root: bytes
    num_tokens: int
    keys: list[bytes]


@dataclass(frozen=True, slots=True)
class KVUsage:
    """Pages by state; free + used + cached = all.

    Attributes:
        num_free: Nobody holds them.
        num_used: At least one sequence holds them.
        num_cached: The prefix cache alone holds them; evictable.
    """

    num_free: int
    num_used: int
    num_cached: int


class KVManager:
    """Pages for sequences. Every call either succeeds or changes nothing.

    Args:
        num_pages: Pages in the pool.
        page_size: Tokens a page.
        fingerprint: Of the model; part of every name.
        kv_dtype: Format of K and V, and whatever else of their making tells them apart; part of every name.
        prefix_cache: Keep finished pages for reuse.
        page_kib: KiB that a page is charged as.
        clock: The meter's; whole milliseconds.

    Attributes:
        meter: Who pays for the pages.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        fingerprint: str,
        kv_dtype: str,
        prefix_cache: bool = True,
        page_kib: int = 1,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self.page_size = page_size
        self.num_pages = num_pages
        self._fingerprint = fingerprint
        self._kv_dtype = kv_dtype
        self._caches = prefix_cache
        self._pool = PagePool(num_pages)
        self._cache = PrefixCache(self._pool)
        self.meter = KVMeter(num_pages=num_pages, page_kib=page_kib, clock=clock)

    @property
    def usage(self) -> KVUsage:
        """How many pages are in which state."""
        free, cached = self._pool.num_free, self._cache.num_idle
        return KVUsage(free, self.num_pages - free - cached, cached)

    @property
    def num_available(self) -> int:
        """Pages that are free or can be made free by evicting cached ones."""
        return self._pool.num_free + self._cache.num_idle

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def name(
        self, token_ids: Sequence[int], *, salt: str, adapter: str = "", num_reusable: int | None = None
    ) -> PrefixName:
        """Names the leading full pages of a history; hashing, so keep the answer.

        Args:
            token_ids: The history.
            salt: Nobody else's pages are meant.
            adapter: What changes the model that computes them: the digest of its content, or nothing.
            num_reusable: Tokens that need not be computed if they are there; None for all but the last.
        """
        if num_reusable is None:
            num_reusable = len(token_ids) - 1
        root = root_key(fingerprint=self._fingerprint, kv_dtype=self._kv_dtype, adapter=adapter, salt=salt)
        num_pages = num_reusable // self.page_size if self._caches else 0
        return PrefixName(root, len(token_ids), self._chain(root, [], token_ids, num_pages))

    def num_cached(self, name: PrefixName) -> int:
        """Leading pages of a history that the cache has."""
        return self._cache.peek(name.keys)[0]

    def can_open(self, name: PrefixName, *, spare_pages: int) -> bool:
        """True if a sequence of these tokens would find pages for all of them, and `spare_pages` were left."""
        num_hit, num_idle = self._cache.peek(name.keys)
        needed = self.pages_for(name.num_tokens) - num_hit
        return needed + num_idle + spare_pages <= self.num_available

    def open(self, name: PrefixName, *, expected_tokens: int, payer: Payer | None = None) -> tuple[BlockTable, int]:
        """Begins a table, with whatever leading pages the cache has; at least one token is left to compute.

        Args:
            name: Of all tokens known now.
            expected_tokens: Length the sequence may grow to; pages are placed with room for it, within reason.
            payer: Who is charged for the pages; None for an account without a name.

        Returns:
            The table and how many of the tokens it holds already.
        """
        self.meter.tick()
        pages = self._cache.match(name.keys)
        payer = self.meter.payer("") if payer is None else payer
        table = BlockTable(payer, name.root, array("i", pages), name.keys[: len(pages)])
        for page in pages:
            self.meter.hold(page, table)
        self._settle()
        growth = min(expected_tokens, name.num_tokens + GROWTH_PAGES * self.page_size)
        table.claim = self._pool.claim(self.pages_for(growth) - len(pages))
        return table, len(pages) * self.page_size

    def fork(self, table: BlockTable, num_tokens: int, payer: Payer | None = None) -> BlockTable:
        """A table that shares the pages of the first `num_tokens` positions; writes to shared pages copy them.

        Args:
            table: Whose pages.
            num_tokens: How many positions of it.
            payer: Who is charged for what the new table holds once it is first in line; None for the old one's.
        """
        self.meter.tick()
        pages = table.pages[: self.pages_for(num_tokens)]
        num_full = num_tokens // self.page_size
        new = BlockTable(table.payer if payer is None else payer, table.root, pages, table.keys[:num_full])
        for page in pages:
            self._pool.share(page)
            self.meter.hold(page, new)
        return new

    def owns(self, table: BlockTable, position: int) -> bool:
        """True if a position lies in a page that the table has to itself: reserving it alone would change nothing."""
        index = position // self.page_size
        return index < len(table.pages) and self._pool.refs(table.pages[index]) == 1

    def can_reserve(self, table: BlockTable, start: int, stop: int, *, spare_pages: int = 0) -> bool:
        """True if `reserve` would succeed, and `spare_pages` were left."""
        return self._pages_missing(table, start, stop) + spare_pages <= self.num_available

    def num_missing(self, table: BlockTable, start: int, stop: int) -> int:
        """Pages that `reserve` would take."""
        return self._pages_missing(table, start, stop)

    def reserve(self, table: BlockTable, start: int, stop: int) -> list[PageCopy]:
        """Makes positions start..stop-1 writable: allocates missing pages and unshares shared ones.

        Returns:
            Copies the device must make before it writes.

        Raises:
            OutOfPages: Nothing was changed.
        """
        missing = self._pages_missing(table, start, stop)
        if missing > self.num_available:
            raise OutOfPages(missing, self.num_available)
        self.meter.tick()
        self._cache.evict(missing - self._pool.num_free)
        copies = []
        for index in range(start // self.page_size, self.pages_for(stop)):
            if index == len(table.pages):
                table.pages.append(self._allocate(table))
            elif self._pool.refs(table.pages[index]) > 1:
                shared, table.pages[index] = table.pages[index], self._allocate(table)
                copies.append((shared, table.pages[index]))
                self._drop(shared, table)
        self._settle()
        return copies

    def truncate(self, table: BlockTable, num_tokens: int) -> None:
        """Gives up all pages that hold none of the first `num_tokens` positions, and the room to grow."""
        self.meter.tick()
        num_pages = self.pages_for(num_tokens)
        for page in reversed(table.pages[num_pages:]):
            self._drop(page, table)
        del table.pages[num_pages:]
        del table.keys[num_tokens // self.page_size :]
        self._give_up_room(table)
        self._settle()

    def drop_pages(self, table: BlockTable, start: int, stop: int) -> None:
        """Gives up the pages of positions in the middle, whole ones: what lies after them moves up by as much."""
        self.meter.tick()
        first, last = start // self.page_size, stop // self.page_size
        for page in reversed(table.pages[first:last]):
            self._drop(page, table)
        del table.pages[first:last]
        del table.keys[first:]
        self._settle()

    def num_shared(self, table: BlockTable) -> int:
        """Pages of a table that others hold too, the cache included."""
        return sum(self._pool.refs(page) > 1 for page in table.pages)

    def owners(self, tables: Sequence[BlockTable]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """For every page who pays for it and how many hold it, the cache not counted.

        Args:
            tables: All living tables.

        Returns:
            Places among the tables, or `FREE` or `CACHED`; and counts.
        """
        owners = np.where(self._pool.free_mask, FREE, CACHED).astype(np.int32)
        places = {table: place for place, table in enumerate(tables)}
        for table, place in places.items():
            if table.pages:
                owners[np.frombuffer(table.pages, dtype=np.intc)] = place
        sharers = (owners >= 0).astype(np.int32)
        pages, firsts, counts = self.meter.shared()
        if pages:
            owners[pages], sharers[pages] = [places[first] for first in firsts], counts
        return owners, sharers

    def publish(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Lets others reuse the full pages of a living table; `token_ids` are all tokens computed so far."""
        if self._caches:
            keys = self._extend_keys(table, token_ids)
            self._cache.insert(keys, table.pages[: len(keys)], adopt_duplicates=False)

    def close(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Ends a table: full pages of the computed `token_ids` stay in the cache, the rest is free. Idempotent."""
        self.meter.tick()
        if self._caches and table.pages:
            keys = self._extend_keys(table, token_ids)
            self._cache.insert(keys, table.pages[: len(keys)], adopt_duplicates=True)
        for page in reversed(table.pages):
            self._drop(page, table)
        del table.pages[:]
        self._give_up_room(table)
        self._settle()

    def clear_cache(self) -> int:
        """Frees every idle page and returns how many."""
        self.meter.tick()
        num_freed = self._cache.evict(self.num_pages)
        self._settle()
        return num_freed

    def check_integrity(self, tables: Iterable[BlockTable]) -> None:
        """Raises AssertionError unless references, free pages, cache and meter agree with the given living tables."""
        tables = list(tables)
        self._cache.check_integrity()
        expected = [0] * self.num_pages
        for table in tables:
            for page in table.pages:
                expected[page] += 1
        for page in self._cache.pages():
            expected[page] += 1
        actual = [self._pool.refs(page) for page in range(self.num_pages)]
        assert actual == expected, f"pages with wrong counts: {_differences(actual, expected)}"
        free = self._pool.free_pages()
        assert free == [page for page in range(self.num_pages) if expected[page] == 0]
        self._pool.check_integrity()
        self.meter.check_integrity(tables, self.num_pages - self._pool.num_free, self._cache.num_idle)

    def _extend_keys(self, table: BlockTable, token_ids: Sequence[int]) -> list[bytes]:
        self._chain(table.root, table.keys, token_ids, len(token_ids) // self.page_size)
        return table.keys

    def _chain(self, root: bytes, keys: list[bytes], token_ids: Sequence[int], num_pages: int) -> list[bytes]:
        """Appends to `keys` until it names `num_pages` pages."""
        size = self.page_size
        for index in range(len(keys), num_pages):
            keys.append(page_key(keys[-1] if keys else root, token_ids[index * size : (index + 1) * size]))
        return keys

    def _pages_missing(self, table: BlockTable, start: int, stop: int) -> int:
        first, last = start // self.page_size, self.pages_for(stop)
        shared = sum(self._pool.refs(page) > 1 for page in table.pages[first:last])
        return shared + max(0, last - len(table.pages))

    def _allocate(self, table: BlockTable) -> int:
        page = self._pool.allocate(*self._place(table))
        self.meter.hold(page, table)
        return page

    def _place(self, table: BlockTable) -> tuple[int | None, Claim | None]:
        """Where the next page of a table should lie."""
        following = table.pages[-1] + 1 if table.pages else None
        if following is None:
            following = table.claim.start if table.claim else None
        elif not self._pool.may_take(following, table.claim):
            self._reclaim(table)
        return following, table.claim

    def _reclaim(self, table: BlockTable) -> None:
        """The table outgrew its claim: place what follows where there is room again."""
        self._give_up_room(table)
        table.claim = self._pool.claim(GROWTH_PAGES)

    def _give_up_room(self, table: BlockTable) -> None:
        if table.claim is not None:
            self._pool.unclaim(table.claim)
            table.claim = None

    def _drop(self, page: int, table: BlockTable) -> None:
        self.meter.release(page, table)
        self._pool.release(page)
        self._cache.released(page)

    def _settle(self) -> None:
        """Tells the meter what the pool looks like after a change."""
        self.meter.pool(self.num_pages - self._pool.num_free, self._cache.num_idle)


def _differences(actual: Sequence[int], expected: Sequence[int]) -> dict[int, tuple[int, int]]:
    return {page: pair for page, pair in enumerate(zip(actual, expected, strict=True)) if pair[0] != pair[1]}
