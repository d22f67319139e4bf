"""The meter: who pays for a page, from when to when, and that nothing is charged twice or not at all."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from engine.kv.block_table import BlockTable
from engine.kv.manager import KVManager
from engine.kv.meter import Rank

SIZE = 4
KIB = 5


class Metered:
    """A pool with a clock that is set by hand."""

    def __init__(self, num_pages: int = 32) -> None:
        self.now = 1000
        self.kv = KVManager(
            num_pages=num_pages,
            page_size=SIZE,
            fingerprint="model",
            kv_dtype="float32",
            page_kib=KIB,
            clock=lambda: self.now,
        )

    def open(self, tokens: list[int], account: str, *, salt: str = "") -> BlockTable:
        payer = self.kv.meter.payer(account)
        table, held = self.kv.open(self.kv.name(tokens, salt=salt), expected_tokens=len(tokens), payer=payer)
        self.kv.reserve(table, held, len(tokens))
        return table

    def charged(self, account: str) -> int:
        """Page·ms."""
        self.kv.meter.tick()
        return self.kv.meter.charge(account).total_kib_ms // KIB

    def level(self, account: str) -> int:
        return self.kv.meter.charge(account).level_kib // KIB


def test_pages_cost_from_the_instant_they_are_taken_to_the_instant_they_are_free() -> None:
    pool = Metered()
    pool.now += 50
    table = pool.open([1] * 10, "a")
    assert pool.charged("a") == 0
    pool.now += 10
    assert pool.charged("a") == 3 * 10
    pool.kv.truncate(table, 4)
    pool.now += 10
    assert pool.charged("a") == 3 * 10 + 1 * 10
    pool.kv.close(table, ())
    pool.now += 1000
    assert pool.charged("a") == 40
    assert pool.level("a") == 0
    assert pool.kv.meter.resident_kib_ms == 40 * KIB


def test_of_those_who_share_a_page_the_one_who_came_first_pays_and_the_next_inherits_when_it_leaves() -> None:
    pool = Metered()
    first = pool.open([1] * 8, "a")
    second = pool.kv.fork(first, 8, pool.kv.meter.payer("b"))
    third = pool.kv.fork(first, 8, pool.kv.meter.payer("c"))
    pool.now += 10
    assert [pool.charged(account) for account in "abc"] == [20, 0, 0]
    pool.kv.close(first, ())
    pool.now += 10
    assert [pool.charged(account) for account in "abc"] == [20, 20, 0]
    pool.kv.close(third, ())
    pool.now += 10
    assert [pool.charged(account) for account in "abc"] == [20, 40, 0]
    pool.kv.close(second, ())
    assert pool.kv.usage.num_used == 0
    pool.kv.check_integrity([])


def test_who_writes_to_a_shared_page_pays_for_the_copy() -> None:
    pool = Metered()
    first = pool.open([1] * 6, "a")
    second = pool.kv.fork(first, 6, pool.kv.meter.payer("b"))
    pool.kv.reserve(second, 6, 7)
    assert (pool.level("a"), pool.level("b")) == (2, 1)
    pool.kv.check_integrity([first, second])


def test_an_export_pays_before_what_lives_and_of_two_exports_the_first() -> None:
    pool = Metered()
    living = pool.open([1] * 8, "a")
    other = pool.kv.fork(living, 8, pool.kv.meter.payer("b"))
    one = pool.kv.fork(living, 8, pool.kv.meter.payer("x", Rank.EXPORTED))
    two = pool.kv.fork(living, 8, pool.kv.meter.payer("y", Rank.EXPORTED))
    pool.kv.check_integrity([living, other, one, two])
    levels = []
    for leaving in (one, two, living, other):
        levels.append({account: pool.level(account) for account in "abxy"})
        pool.kv.close(leaving, ())
    assert levels == [
        {"a": 0, "b": 0, "x": 2, "y": 0},
        {"a": 0, "b": 0, "x": 0, "y": 2},
        {"a": 2, "b": 0, "x": 0, "y": 0},
        {"a": 0, "b": 2, "x": 0, "y": 0},
    ]


def test_pages_that_only_the_cache_holds_are_charged_to_nobody_until_somebody_finds_them() -> None:
    pool = Metered()
    tokens = [1] * 9
    pool.kv.close(pool.open(tokens, "a"), tokens)
    pool.now += 10
    assert pool.charged("a") == 0
    assert pool.kv.meter.overhead_kib_ms == 2 * 10 * KIB
    again = pool.open(tokens, "b")
    pool.now += 10
    assert pool.charged("b") == 3 * 10
    assert pool.kv.meter.overhead_kib_ms == 2 * 10 * KIB
    pool.kv.check_integrity([again])


def test_a_clock_that_goes_back_stands_still() -> None:
    pool = Metered()
    table = pool.open([1] * 4, "a")
    pool.now += 10
    assert pool.charged("a") == 10
    pool.now -= 500
    assert pool.charged("a") == 10
    pool.kv.close(table, ())
    assert pool.charged("a") == 10


def test_host_copies_cost_what_pages_cost() -> None:
    pool = Metered()
    payer = pool.kv.meter.payer("a")
    pool.kv.meter.host(payer, 3)
    pool.now += 10
    table = pool.open([1] * 4, "b")
    pool.now += 10
    assert (pool.charged("a"), pool.charged("b")) == (60, 10)
    assert pool.kv.meter.resident_kib_ms == 70 * KIB
    pool.kv.check_integrity([table])
    pool.kv.meter.host(payer, -3)
    pool.kv.check_integrity([table])


@pytest.mark.parametrize("seed", range(20))
def test_a_random_life_is_charged_as_an_oracle_that_looks_at_every_page_in_every_millisecond_says(seed: int) -> None:
    rng = random.Random(seed)
    pool = Metered(rng.choice([12, 40]))
    live: dict[BlockTable, list[int]] = {}
    arrivals: dict[tuple[int, BlockTable], int] = {}
    expected: Counter[str] = Counter()
    for step in range(150):
        _live(pool, live, rng)
        held = {(page, table) for table in live for page in table.pages}
        arrivals = {hold: arrivals.get(hold, step) for hold in held}
        for page in {page for page, _ in held}:
            holders = [table for table in live if (page, table) in held]
            payer = min(holders, key=lambda table: (table.payer.rank, arrivals[page, table]))
            expected[payer.payer.account] += step % 4
        pool.now += step % 4
        pool.kv.check_integrity(live)
    assert {account: pool.charged(account) for account in expected} == dict(expected)


def _live(pool: Metered, histories: dict[BlockTable, list[int]], rng: random.Random) -> None:
    """One change, so that of two holders of a page one has come first."""
    act = rng.choice(["open", "fork", "grow", "close", "truncate", "publish", "export"])
    account = rng.choice("abc")
    if act == "open" or not histories:
        tokens = [rng.randrange(2)] * rng.randint(1, 20)
        if pool.kv.can_open(pool.kv.name(tokens, salt=""), spare_pages=0):
            histories[pool.open(tokens, account)] = tokens
        return
    table = rng.choice(list(histories))
    tokens = histories[table]
    length = rng.randint(0, len(tokens))
    if act in ("fork", "export"):
        rank = Rank.EXPORTED if act == "export" else Rank.LIVE
        histories[pool.kv.fork(table, length, pool.kv.meter.payer(account, rank))] = tokens[:length]
    elif act == "grow" and pool.kv.can_reserve(table, len(tokens), len(tokens) + 1):
        pool.kv.reserve(table, len(tokens), len(tokens) + 1)
        histories[table] = [*tokens, rng.randrange(2)]
    elif act == "truncate":
        pool.kv.truncate(table, length)
        histories[table] = tokens[:length]
    elif act == "publish":
        pool.kv.publish(table, tokens)
    elif act == "close":
        del histories[table]
        pool.kv.close(table, tokens)
