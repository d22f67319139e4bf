"""A look at the whole KV pool: who pays for which page, and on what terms; cheap, and bounded however large it is.

Pages are never walked one by one but for those that several hold: 300,000 pages of 2,500 holders, 40,000 of them
shared, take 30 ms, the pools of small servers less than one. What is asked for again within a moment is answered with
what was found, so that many who watch cost no more than one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from engine.contexts.held import HeldContext
from engine.kv.block_table import BlockTable
from engine.kv.overview import CACHED, FREE, KVHolder, KVMap, PageRuns
from engine.scheduling.scheduler import Scheduler

MAX_RUNS = 2048
"""Most runs of one tier; with more of them a cell is more pages."""

MAX_SINGLE = 96
"""Holders that are told of one by one: those that hold most."""

MAX_ACCOUNTS = 31
"""Accounts whose other holders stand together; those of all others are one."""

MOMENT_MS = 500
"""What was found is as good for so long."""

MAX_SHARERS = 255


@dataclass(frozen=True, slots=True)
class _Found:
    """One holder, and where its pages are."""

    holder: KVHolder
    table: BlockTable | None
    host_pages: list[int]

    @property
    def size(self) -> int:
        return self.holder.num_pages + self.holder.num_host_pages


class KVMapper:
    """Draws maps of one engine's KV.

    Args:
        scheduler: Knows everybody who holds pages.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._last: KVMap | None = None
        self._drawn_at = 0

    def draw(self) -> KVMap:
        """The map of this moment."""
        meter = self._scheduler.kv.meter
        meter.tick()
        if self._last is None or meter.now - self._drawn_at >= MOMENT_MS:
            self._last, self._drawn_at = self._draw(), meter.now
        return self._last

    def _draw(self) -> KVMap:
        scheduler = self._scheduler
        contexts = {_table_of(context): context for context in scheduler.contexts}
        tables = list({table: None for table in (*scheduler.tables(), *contexts) if table is not None})
        owners, sharers = scheduler.kv.owners(tables)
        paid = np.bincount(owners[owners >= 0], minlength=len(tables))
        found = [
            self._describe(table, contexts.get(table), int(num_pages))
            for table, num_pages in zip(tables, paid, strict=True)
        ]
        found += [self._describe(None, one, 0) for one in scheduler.contexts if _table_of(one) is None and _counts(one)]
        holders, places = _grouped(found)
        host = np.full(scheduler.tier.num_pages, FREE, dtype=np.int32)
        for one, place in zip(found, places, strict=True):
            host[one.host_pages] = place
        # Owners below 0 find themselves at the end.
        owners = np.append(places, (CACHED, FREE)).astype(np.int32)[owners]
        return KVMap(
            device=_runs(owners, sharers),
            host=_runs(host, (host >= 0).astype(np.int32)),
            holders=holders,
            num_holders=len(found),
        )

    def _describe(self, table: BlockTable | None, context: HeldContext | None, num_pages: int) -> _Found:
        if context is None:
            assert table is not None
            return _Found(KVHolder(account=table.payer.account, kind="request", num_pages=num_pages), table, [])
        contexts, now = self._scheduler.contexts, self._scheduler.kv.meter.now
        ends_at, lease = contexts.exports.ends_at(context.context_id), context.lease
        is_kept = context.context_id in contexts.kept
        if lease is not None:
            ends_at = lease.ends_at
        host_pages = [] if context.host is None else context.host.pages
        holder = KVHolder(
            account=context.payer.account,
            kind="kept" if is_kept else "context" if ends_at is None or lease is not None else "export",
            num_pages=num_pages,
            num_host_pages=len(host_pages),
            value=None if lease is None else lease.value,
            left_ms=None if ends_at is None else max(ends_at - now, 0),
            on_pressure="" if lease is None else lease.on_pressure,
            idle_ms=None if context.idle_since is None else now - context.idle_since,
        )
        return _Found(holder, table, host_pages)


def _table_of(context: HeldContext) -> BlockTable | None:
    """The pages of a context, whoever has them now."""
    sequence = context.sequence
    return sequence.table if sequence is not None and sequence.is_running else context.table


def _counts(context: HeldContext) -> bool:
    """Whether a context without pages is worth a word."""
    return context.host is not None or context.lease is not None


def _grouped(found: list[_Found]) -> tuple[list[KVHolder], npt.NDArray[np.int32]]:
    """Holders that are told of, and the place of each of all among them."""
    order = sorted(range(len(found)), key=lambda at: -found[at].size)
    places = np.zeros(len(found), dtype=np.int32)
    holders = [found[at].holder for at in order[:MAX_SINGLE]]
    places[order[:MAX_SINGLE]] = np.arange(len(holders))
    sizes: Counter[str] = Counter()
    for at in order[MAX_SINGLE:]:
        sizes[found[at].holder.account] += found[at].size
    named = {account: len(holders) + at for at, (account, _) in enumerate(sizes.most_common(MAX_ACCOUNTS))}
    holders += [KVHolder(account=account, kind="others", num_pages=0) for account in named]
    rest = len(holders)
    if len(sizes) > len(named):
        holders.append(KVHolder(account="", kind="others", num_pages=0))
    for at in order[MAX_SINGLE:]:
        one = found[at].holder
        place = places[at] = named.get(one.account, rest)
        so_far = holders[place]
        holders[place] = msgspec.structs.replace(
            so_far,
            num_pages=so_far.num_pages + one.num_pages,
            num_host_pages=so_far.num_host_pages + one.num_host_pages,
        )
    return holders, places


def _runs(owners: npt.NDArray[np.int32], sharers: npt.NDArray[np.int32]) -> PageRuns:
    """Owners by page as runs; with too many of them, of cells of more pages each."""
    if not len(owners):
        return PageRuns(num_pages=0, cell_pages=1, runs=[])
    labels = (owners.astype(np.int64) << 8) | np.clip(sharers, 0, MAX_SHARERS)
    cell_pages, cells = 1, labels
    while len(starts := _starts(cells)) > MAX_RUNS:
        cell_pages *= 2
        while len(_starts(labels[::cell_pages])) > MAX_RUNS:
            cell_pages *= 2
        short = -len(labels) % cell_pages
        padded = np.concatenate((labels, np.full(short, labels[-1])))
        # What most pages of a cell are is what stands in the middle of them, sorted.
        cells = np.sort(padded.reshape(-1, cell_pages), axis=1)[:, cell_pages // 2]
    lengths = np.diff(np.append(starts, len(cells)))
    found = np.stack((lengths, cells[starts] >> 8, cells[starts] & MAX_SHARERS), axis=1)
    return PageRuns(num_pages=len(owners), cell_pages=cell_pages, runs=found.ravel().tolist())


def _starts(cells: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
    """Where another run begins."""
    return np.flatnonzero(np.diff(cells, prepend=cells[0] - 1))
