"""Finished pages kept for whoever starts with the same tokens: a radix tree over pages (arXiv 2312.07104).

Each node is one full page under its chained key, so a path from the root is a prefix. The tree holds one reference to
every page in it. A page that nobody else holds is idle and may be evicted, leaves first, longest unused first. Whoever
gave up pages in the middle of its own may hold pages below idle ones: where nothing else is left those leave the tree.

    free ──allocate──▶ in use by sequences ──insert──▶ in use and in the tree ──last release──▶ idle ──evict──▶ free
                                                              ▲                                  │
                                                              └──────────────match───────────────┘
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from engine.kv.pages import PagePool


@dataclass(slots=True, eq=False)
class _Node:
    key: bytes
    page: int
    parent: _Node | None
    num_children: int = 0
    used_at: int = 0


class PrefixCache:
    """The tree. It changes references in the pool; callers change only references of their own.

    Attributes:
        num_idle: Pages that only the tree holds.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._nodes: dict[bytes, _Node] = {}
        self._by_page: dict[int, _Node] = {}
        self._ticks = itertools.count(1)
        self._candidates: list[tuple[int, int, _Node]] = []
        self.num_idle = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, keys: list[bytes]) -> list[int]:
        """Pages of the longest stored prefix of `keys`, each with a reference added for the caller."""
        pages = []
        tick = next(self._ticks)
        for node in self._path(keys):
            if self._pool.refs(node.page) == 1:
                self.num_idle -= 1
            self._pool.share(node.page)
            node.used_at = tick
            pages.append(node.page)
        return pages

    def peek(self, keys: list[bytes]) -> tuple[int, int]:
        """How many leading pages are stored, and how many of those are idle now. Changes nothing."""
        pages = [node.page for node in self._path(keys)]
        return len(pages), sum(self._pool.refs(page) == 1 for page in pages)

    def insert(self, keys: list[bytes], pages: Iterable[int], *, adopt_duplicates: bool) -> None:
        """Stores a prefix, taking a reference to each page that is new to the tree.

        Args:
            keys: Keys of leading full pages.
            pages: Their pages, held by the caller.
            adopt_duplicates: Where the tree has another page under the same key, go on below it. Only right when the
                caller is about to release its pages: what is in use must lie below what is in use, or an idle page
                could not be evicted. Pages that others hold too are therefore not adopted.
        """
        parent: _Node | None = None
        tick = next(self._ticks)
        adopts = False
        for key, page in zip(keys, pages, strict=True):
            node = self._nodes.get(key)
            if node is None:
                if adopts and self._pool.refs(page) > 1:
                    return
                node = self._add(key, page, parent)
            elif node.page != page:
                if not adopt_duplicates:
                    return
                adopts = True
            node.used_at = tick
            if self._pool.refs(node.page) == 1:
                self._offer(node)
            parent = node

    def released(self, page: int) -> None:
        """To be told after a caller dropped its reference to a page that may be in the tree."""
        node = self._by_page.get(page)
        if node is None or self._pool.refs(page) != 1:
            return
        self.num_idle += 1
        self._offer(node)

    def evict(self, num_pages: int) -> int:
        """Frees up to `num_pages` idle pages and returns how many."""
        freed = 0
        while freed < num_pages and self._candidates:
            used_at, _, node = heapq.heappop(self._candidates)
            current = self._nodes.get(node.key) is node and node.used_at == used_at
            if not current or node.num_children or self._pool.refs(node.page) != 1:
                continue
            self._remove(node)
            freed += 1
        if freed < num_pages and self.num_idle:
            freed += self._prune(num_pages - freed)
        return freed

    def pages(self) -> list[int]:
        """All pages in the tree."""
        return list(self._by_page)

    def check_integrity(self) -> None:
        """Raises AssertionError if counts, links or references disagree."""
        children: dict[bytes, int] = {}
        for node in self._nodes.values():
            assert self._by_page.get(node.page) is node
            assert self._pool.refs(node.page) >= 1
            if node.parent is not None:
                assert self._nodes.get(node.parent.key) is node.parent, "a node outlived its parent"
                children[node.parent.key] = children.get(node.parent.key, 0) + 1
        for node in self._nodes.values():
            assert node.num_children == children.get(node.key, 0)
        assert len(self._by_page) == len(self._nodes)
        idle = [node for node in self._nodes.values() if self._pool.refs(node.page) == 1]
        assert self.num_idle == len(idle)
        offered = {id(node) for used_at, _, node in self._candidates if node.used_at == used_at}
        assert all(id(node) in offered for node in idle if not node.num_children), "an idle leaf cannot be evicted"

    def _prune(self, num_pages: int) -> int:
        """Frees idle pages that have pages in use below them: those stay with who holds them, outside of the tree."""
        below: dict[bytes, list[_Node]] = {}
        for node in self._nodes.values():
            if node.parent is not None:
                below.setdefault(node.parent.key, []).append(node)
        before = self.num_idle
        for node in [node for node in self._nodes.values() if self._pool.refs(node.page) == 1]:
            if before - self.num_idle >= num_pages:
                break
            self._remove_with(node, below)
        return before - self.num_idle

    def _remove_with(self, node: _Node, below: dict[bytes, list[_Node]]) -> None:
        """Takes a node and all below it out of the tree, deepest first."""
        order = [node]
        for one in order:
            order += below.get(one.key, ())
        for one in reversed(order):
            if self._nodes.get(one.key) is one:
                self._remove(one)

    def _path(self, keys: list[bytes]) -> list[_Node]:
        path: list[_Node] = []
        for key in keys:
            node = self._nodes.get(key)
            if node is None:
                break
            path.append(node)
        return path

    def _add(self, key: bytes, page: int, parent: _Node | None) -> _Node:
        node = _Node(key, page, parent)
        self._nodes[key] = node
        self._by_page[page] = node
        self._pool.share(page)
        if parent is not None:
            parent.num_children += 1
        return node

    def _remove(self, node: _Node) -> None:
        del self._nodes[node.key]
        del self._by_page[node.page]
        self.num_idle -= self._pool.release(node.page) == 0
        if node.parent is not None:
            node.parent.num_children -= 1
            if self._pool.refs(node.parent.page) == 1:
                self._offer(node.parent)

    def _offer(self, node: _Node) -> None:
        """Makes an idle node known to `evict`; leaves alone are taken there."""
        if node.num_children:
            return
        heapq.heappush(self._candidates, (node.used_at, next(self._ticks), node))
        if len(self._candidates) > 4 * len(self._nodes) + 64:
            self._candidates = [entry for entry in self._candidates if entry[2].used_at == entry[0]]
            heapq.heapify(self._candidates)
