"""Who holds the KV pool, page by page: what crosses to whoever looks at it, and how it is put into few numbers."""

from __future__ import annotations

from typing import Literal

import msgspec

FREE = -1
"""In place of a holder: nobody holds the pages."""

CACHED = -2
"""In place of a holder: the prefix cache alone does, for anybody."""

HolderKind = Literal["request", "context", "export", "kept", "others"]
"""A plain request; a context that a program holds; an exported prefix; what a request wanted kept; all smaller ones."""


class KVHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who pays for pages.

    Attributes:
        account: Label that is charged; empty for many of them together.
        kind: What it is.
        num_pages: Pages of the pool that it pays for.
        num_host_pages: Pages of host memory.
        value: What its lease says is the chance that it is used again; None without a lease.
        left_ms: Until its lease, or its export, is over; None without one.
        on_pressure: What its lease says is to happen when others need the memory; empty without one.
        idle_ms: Since when nobody computes on it; None while somebody does, or did never.
    """

    account: str
    kind: HolderKind
    num_pages: int
    num_host_pages: int = 0
    value: float | None = None
    left_ms: int | None = None
    on_pressure: str = ""
    idle_ms: int | None = None


class PageRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Pages in their order, as runs of cells that are alike.

    Attributes:
        num_pages: Pages in all.
        cell_pages: Pages of one cell; of more than one what most of them are.
        runs: Three numbers a run: its cells, who pays for them (its place among the holders, `FREE` or `CACHED`), and
            how many hold each page, at most 255.
    """

    num_pages: int
    cell_pages: int
    runs: list[int]


class KVMap(msgspec.Struct, frozen=True, kw_only=True):
    """The whole pool at one instant.

    Attributes:
        device: Pages of the pool.
        host: Pages of host memory.
        holders: Who pays for them, whoever holds most first.
        num_holders: How many there are, those included that stand together as `others`.
    """

    device: PageRuns
    host: PageRuns
    holders: list[KVHolder]
    num_holders: int
