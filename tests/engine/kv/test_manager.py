"""The KV manager: sharing, copy-on-write, caching and, after any history, exact books."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import OutOfPages
from engine.kv.block_table import BlockTable
from engine.kv.manager import KVManager

SIZE = 4


def _manager(num_pages: int = 16, *, prefix_cache: bool = True) -> KVManager:
    return KVManager(
        num_pages=num_pages, page_size=SIZE, fingerprint="model", kv_dtype="float32", prefix_cache=prefix_cache
    )


def _open(kv: KVManager, tokens: list[int], salt: str = "") -> tuple[BlockTable, int]:
    table, held = kv.open(kv.name(tokens, salt=salt), expected_tokens=len(tokens) + 8)
    kv.reserve(table, held, len(tokens))
    return table, held


def test_a_finished_prompt_is_found_again_but_for_its_last_token() -> None:
    kv = _manager()
    tokens = list(range(12))
    table, held = _open(kv, tokens)
    assert held == 0
    kv.close(table, tokens)
    again, held = _open(kv, tokens)
    assert held == 8
    kv.close(again, tokens)
    longer, held = _open(kv, [*tokens, 99])
    assert held == 12
    kv.check_integrity([longer])


def test_another_salt_finds_nothing() -> None:
    kv = _manager()
    tokens = list(range(12))
    table, _ = _open(kv, tokens, salt="one")
    kv.close(table, tokens)
    assert _open(kv, tokens, salt="two")[1] == 0


def test_a_running_sequence_shares_what_it_has_published() -> None:
    kv = _manager()
    tokens = list(range(9))
    first, _ = _open(kv, tokens)
    kv.publish(first, tokens)
    second, held = _open(kv, tokens)
    assert held == 8
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]
    kv.check_integrity([first, second])


def test_a_fork_shares_pages_until_one_of_them_writes() -> None:
    kv = _manager()
    tokens = list(range(6))
    parent, _ = _open(kv, tokens)
    child = kv.fork(parent, 6)
    assert child.pages == parent.pages
    used = kv.usage.num_used
    copies = kv.reserve(child, 6, 7)
    assert copies == [(parent.pages[1], child.pages[1])]
    assert child.pages[0] == parent.pages[0]
    assert kv.usage.num_used == used + 1
    assert kv.reserve(parent, 6, 7) == []
    kv.check_integrity([parent, child])


def test_a_page_in_the_cache_is_copied_before_it_is_written() -> None:
    kv = _manager()
    tokens = list(range(8))
    table, _ = _open(kv, tokens)
    kv.publish(table, tokens)
    shared = table.pages[1]
    assert kv.reserve(table, 6, 8) == [(shared, table.pages[1])]
    kv.check_integrity([table])


def test_idle_pages_are_evicted_for_who_needs_them_longest_unused_first() -> None:
    kv = _manager(num_pages=4)
    old, new = [1] * 8, [2] * 8
    for tokens in (old, new):
        kv.close(_open(kv, tokens)[0], tokens)
    assert kv.usage.num_cached == 4
    table, _ = _open(kv, [3] * 4)
    kv.close(table, [3] * 4)
    assert _open(kv, [*new, 0])[1] == 8


def test_a_reservation_that_cannot_be_met_changes_nothing() -> None:
    kv = _manager(num_pages=2)
    table, _ = _open(kv, [1] * 4)
    before = list(table.pages)
    assert not kv.can_reserve(table, 4, 16)
    with pytest.raises(OutOfPages) as caught:
        kv.reserve(table, 4, 16)
    assert caught.value.needed_pages == 3
    assert list(table.pages) == before
    kv.check_integrity([table])


def test_admission_counts_idle_pages_that_it_would_share_only_once() -> None:
    kv = _manager(num_pages=3)
    tokens = [1] * 8
    kv.close(_open(kv, tokens)[0], tokens)
    assert kv.can_open(kv.name([*tokens, 1], salt=""), spare_pages=0)
    assert not kv.can_open(kv.name([*tokens, 1], salt=""), spare_pages=1)


def test_without_a_cache_nothing_is_kept() -> None:
    kv = _manager(prefix_cache=False)
    tokens = list(range(12))
    kv.close(_open(kv, tokens)[0], tokens)
    assert kv.usage.num_free == 16


def test_closing_twice_is_harmless() -> None:
    kv = _manager()
    table, _ = _open(kv, [1, 2, 3])
    kv.close(table, [1, 2, 3])
    kv.close(table, [1, 2, 3])
    kv.check_integrity([])


class Histories(RuleBasedStateMachine):
    """Opens, grows, forks, publishes and closes tables at random; the books must balance after every move."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = _manager(num_pages=12)
        self.live: list[tuple[BlockTable, list[int]]] = []
        self.edited: list[tuple[BlockTable, list[int]]] = []
        """Tables without some of their pages, and the tokens before the first of those."""

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20), salt=st.sampled_from(["", "x"]))
    def open(self, tokens: list[int], salt: str) -> None:
        name = self.kv.name(tokens, salt=salt)
        if self.kv.can_open(name, spare_pages=0):
            table, held = self.kv.open(name, expected_tokens=len(tokens) + 4)
            assert held < len(tokens)
            self.kv.reserve(table, held, len(tokens))
            self.live.append((table, list(tokens)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        table, tokens = data.draw(st.sampled_from(self.live))
        start = len(tokens)
        if self.kv.can_reserve(table, start, start + 1):
            for source, destination in self.kv.reserve(table, start, start + 1):
                assert source != destination
            tokens.append(token)
        else:
            with pytest.raises(OutOfPages):
                self.kv.reserve(table, start, start + 1)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.live))
        length = data.draw(st.integers(1, len(tokens)))
        self.live.append((self.kv.fork(table, length), tokens[:length]))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.live))
        self.kv.publish(table, tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), part=st.floats(0, 1))
    def close(self, data: st.DataObject, part: float) -> None:
        entry = data.draw(st.sampled_from(self.live))
        self.live.remove(entry)
        table, tokens = entry
        self.kv.close(table, tokens[: max(int(len(tokens) * part), len(table.keys) * SIZE)])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        table, tokens = data.draw(st.sampled_from(self.live))
        del tokens[data.draw(st.integers(1, len(tokens))) :]
        self.kv.truncate(table, len(tokens))
        assert len(table.pages) == self.kv.pages_for(len(tokens))

    @precondition(lambda self: any(len(tokens) >= SIZE for _, tokens in self.live))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from([entry for entry in self.live if len(entry[1]) >= SIZE]))
        table, tokens = entry
        first = data.draw(st.integers(0, len(tokens) // SIZE - 1))
        last = data.draw(st.integers(first + 1, len(tokens) // SIZE))
        before = len(table.pages)
        self.kv.drop_pages(table, first * SIZE, last * SIZE)
        assert len(table.pages) == before - (last - first)
        self.live.remove(entry)
        self.edited.append((table, tokens[: first * SIZE]))

    @precondition(lambda self: self.edited)
    @rule(data=st.data())
    def close_edited(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.edited))
        self.edited.remove(entry)
        self.kv.close(*entry)

    @rule(count=st.integers(1, 12))
    def everything_idle_can_be_had(self, count: int) -> None:
        if count <= self.kv.num_available:
            name = self.kv.name([2] * (count * SIZE), salt="new")
            table, held = self.kv.open(name, expected_tokens=count * SIZE)
            self.kv.reserve(table, held, count * SIZE)
            self.kv.close(table, ())

    @rule()
    def clear(self) -> None:
        self.kv.clear_cache()

    @invariant()
    def the_books_balance(self) -> None:
        tables = [table for table, _ in (*self.live, *self.edited)]
        self.kv.check_integrity(tables)
        usage = self.kv.usage
        assert usage.num_free + usage.num_used + usage.num_cached == 12
        assert usage.num_used == len({page for table in tables for page in table.pages})

    @invariant()
    def every_table_has_room_for_its_tokens(self) -> None:
        for table, tokens in self.live:
            assert len(table.pages) >= self.kv.pages_for(len(tokens))

    def teardown(self) -> None:
        for table, tokens in (*self.live, *self.edited):
            self.kv.close(table, tokens)
        self.kv.clear_cache()
        self.kv.check_integrity([])
        assert self.kv.usage.num_free == 12


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
