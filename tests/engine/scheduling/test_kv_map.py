"""Maps of the KV pool: every page is somebody's, as the meter has it, and no map is large."""

from __future__ import annotations

import itertools
import json
import random

import msgspec
import pytest

from engine.contexts.commands import AppendTokens, ExportContext, ForkContext, KeepContext, OpenContext, RetainContext
from engine.kv.overview import CACHED, FREE, KVMap, PageRuns
from engine.kv_map import MAX_ACCOUNTS, MAX_RUNS, MAX_SINGLE, MOMENT_MS, KVMapper
from engine.request import GenerateRequest
from engine.sampling.params import SamplingParams
from tests.engine.scheduling.rig import PAGE_KIB, SIZE, Rig

NUMBERS = itertools.count()
PAGES = 3
IDS = [index % 40 for index in range(PAGES * SIZE)]


def hold(rig: Rig, name: str, ids: list[int], account: str = "s/a", salt: str = "s") -> None:
    """A context whose tokens are computed."""
    rig.obey(OpenContext(name, account, salt))
    rig.obey(AppendTokens(name, ids))
    compute(rig, context_id=name)


def compute(rig: Rig, *, max_tokens: int = 0, drains: bool = True, **fields: object) -> None:
    request_id = f"r{next(NUMBERS)}"
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = GenerateRequest(request_id=request_id, prompt_ids=[], sampling=params)
    rig.scheduler.add(msgspec.structs.replace(request, **fields))
    if drains:
        rig.drain()


def cells(runs: PageRuns) -> list[tuple[int, int]]:
    """Owner and number of holders of every cell."""
    found = []
    for at in range(0, len(runs.runs), 3):
        length, owner, sharers = runs.runs[at : at + 3]
        found += [(owner, sharers)] * length
    assert len(found) == -(-runs.num_pages // runs.cell_pages)
    return found


def check(rig: Rig, drawn: KVMap) -> None:
    """Raises AssertionError unless a map of single pages is what pool and meter say."""
    assert drawn.device.cell_pages == 1
    owners = [owner for owner, _ in cells(drawn.device)]
    usage = rig.kv.usage
    assert (owners.count(FREE), owners.count(CACHED)) == (usage.num_free, usage.num_cached)
    for place, holder in enumerate(drawn.holders):
        assert owners.count(place) == holder.num_pages
        assert [owner for owner, _ in cells(drawn.host)].count(place) == holder.num_host_pages
    levels: dict[str, int] = {}
    for holder in drawn.holders:
        pages = holder.num_pages + holder.num_host_pages
        levels[holder.account] = levels.get(holder.account, 0) + pages * PAGE_KIB
    charged = {one.account: one.level_kib for one in rig.kv.meter.charges() if one.level_kib}
    assert {account: kib for account, kib in levels.items() if kib} == charged


def test_every_page_is_free_cached_or_somebody_s_on_its_terms() -> None:
    rig = Rig(num_pages=40)
    hold(rig, "leased", [1, *IDS])
    rig.obey(RetainContext("leased", "l", 60_000, 10**6, 0.8, "tokens"))
    hold(rig, "kept", [2, *IDS])
    rig.obey(KeepContext("kept", "k", 50_000, 10**6, 0.4, 3))
    hold(rig, "made", [3, *IDS])
    rig.obey(ExportContext("made", "exported", 40_000))
    rig.obey(ForkContext("made", ["fork"]))
    compute(rig, prompt_ids=[9] * (2 * SIZE), account="b/x", salt="b")
    compute(rig, prompt_ids=[8] * SIZE, account="c/x", salt="c", max_tokens=30, drains=False)
    rig.step()
    rig.step()
    drawn = KVMapper(rig.scheduler).draw()
    check(rig, drawn)
    kinds = {one.kind: one for one in drawn.holders if one.num_pages}
    assert kinds.keys() == {"context", "kept", "export", "request"}
    leased, kept, exported, running = (kinds[kind] for kind in ("context", "kept", "export", "request"))
    assert (leased.value, leased.on_pressure, kept.value) == (0.8, "tokens", 0.4)
    assert leased.left_ms is not None
    assert 0 < leased.left_ms <= 60_000
    assert exported.left_ms is not None
    assert 0 < exported.left_ms <= 40_000
    assert (running.account, running.idle_ms, leased.idle_ms is not None) == ("c/x", None, True)
    # The export pays for what its maker and the fork of that hold too.
    assert {sharers for owner, sharers in cells(drawn.device) if drawn.holders[owner] is exported and owner >= 0} == {3}
    rig.drain()


def test_what_lies_in_host_memory_is_on_a_map_of_its_own() -> None:
    rig = Rig(num_pages=PAGES + 3, host_pages=8, prefix_cache=False)
    hold(rig, "leased", [1, *IDS])
    rig.obey(RetainContext("leased", "l", 60_000, 10**6, 0.8, "host"))
    compute(rig, prompt_ids=[9] * ((PAGES + 2) * SIZE), account="b/x", salt="b")
    drawn = KVMapper(rig.scheduler).draw()
    check(rig, drawn)
    (holder,) = drawn.holders
    assert (holder.num_pages, holder.num_host_pages) == (0, PAGES + 1)


def test_a_map_is_drawn_anew_only_after_a_moment() -> None:
    rig = Rig()
    mapper = KVMapper(rig.scheduler)
    first = mapper.draw()
    hold(rig, "one", IDS)
    rig.now = mapper._drawn_at + MOMENT_MS - 1
    assert mapper.draw() is first
    rig.now += 1
    check(rig, mapper.draw())


@pytest.mark.parametrize("num_pages", [20_000, 20_001])
def test_a_large_pool_in_small_pieces_is_told_in_few_bytes(num_pages: int) -> None:
    rig = Rig(num_pages=num_pages, prefix_cache=False)
    rng = random.Random(3)
    tables = []
    for number in range(1200):
        payer = rig.kv.meter.payer(f"account {number % 60}")
        name = rig.kv.name([number] * SIZE, salt="s")
        table, _ = rig.kv.open(name, expected_tokens=1, payer=payer)
        tables.append(table)
    for _ in range(9000):
        table = rng.choice(tables)
        start = len(table.pages) * SIZE
        rig.kv.reserve(table, start, start + SIZE)
    scheduler = rig.scheduler
    scheduler.tables = lambda: iter(tables)  # type: ignore[method-assign]
    drawn = KVMapper(scheduler).draw()
    assert len(drawn.device.runs) <= 3 * MAX_RUNS
    assert drawn.device.cell_pages > 1
    assert len(drawn.holders) == MAX_SINGLE + MAX_ACCOUNTS + 1
    assert (drawn.num_holders, sum(one.num_pages for one in drawn.holders)) == (1200, 9000)
    assert len(json.dumps(msgspec.to_builtins(drawn))) < 64_000
    assert len(cells(drawn.device)) == -(-num_pages // drawn.device.cell_pages)


@pytest.mark.parametrize("seed", range(6))
def test_after_whatever_happens_the_map_is_what_pool_and_meter_say(seed: int) -> None:
    rng = random.Random(seed)
    rig = Rig(num_pages=30, host_pages=12, prefix_cache=bool(seed % 2))
    names: list[str] = []
    for number in range(60):
        account = f"s/{rng.randrange(3)}"
        match rng.randrange(9):
            case 0 | 1:
                name = f"c{number}"
                rig.obey(OpenContext(name, account, "s"))
                rig.obey(AppendTokens(name, IDS[: rng.randrange(1, 12)]))
                names.append(name)
            case 2 if names:
                rig.obey(ForkContext(rng.choice(names), [f"f{number}"]))
                names.append(f"f{number}")
            case 3 if names:
                rig.obey(
                    RetainContext(rng.choice(names), f"l{number}", 500, 10**6, 0.7, rng.choice(["host", "tokens"]))
                )
            case 4 if names:
                name = names.pop(rng.randrange(len(names)))
                rig.obey(KeepContext(name, f"k{number}", 300, 10**6, 0.5, 2))
            case 5 if names:
                rig.obey(ExportContext(rng.choice(names), f"x{number}", 400))
            case 6 if names:
                rig.scheduler.release_contexts([names.pop(rng.randrange(len(names)))])
            case 7:
                compute(
                    rig, prompt_ids=[7] * rng.randrange(1, 20), account=account, salt="s", max_tokens=5, drains=False
                )
            case _ if names:
                name = rng.choice(names)
                if rig.scheduler.contexts[name].sequence is None:
                    compute(rig, context_id=name, max_tokens=rng.randrange(4), drains=False)
        for _ in range(rng.randrange(3)):
            rig.step()
        check(rig, KVMapper(rig.scheduler).draw())
    rig.drain()
    check(rig, KVMapper(rig.scheduler).draw())
