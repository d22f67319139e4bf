"""The page pool: counts, claims and placement."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import OutOfPages
from engine.kv.pages import Claim, PagePool


def test_pages_of_a_claim_lie_side_by_side() -> None:
    pool = PagePool(16)
    claim = pool.claim(4)
    assert claim is not None
    first = pool.allocate(claim.start, claim)
    assert [pool.allocate(first + step, claim) for step in (1, 2, 3)] == [first + 1, first + 2, first + 3]


def test_two_growing_claims_do_not_interleave() -> None:
    pool = PagePool(16)
    mine, yours = pool.claim(4), pool.claim(4)
    assert mine is not None
    assert yours is not None
    pages = [(pool.allocate(mine.start + step, mine), pool.allocate(yours.start + step, yours)) for step in range(4)]
    assert [page for page, _ in pages] == list(range(mine.start, mine.stop))
    assert [page for _, page in pages] == list(range(yours.start, yours.stop))


def test_claimed_pages_are_used_by_others_only_when_nothing_else_is_free() -> None:
    pool = PagePool(4)
    claim = pool.claim(2)
    assert claim is not None
    others = [pool.allocate() for _ in range(2)]
    assert all(page not in claim for page in others)
    assert pool.allocate() in claim


def test_a_claim_longer_than_any_run_takes_the_longest() -> None:
    pool = PagePool(8)
    held = [pool.allocate() for _ in range(8)]
    for page in (held[0], held[2], held[3], held[4], held[6]):
        pool.release(page)
    claim = pool.claim(5)
    assert claim is not None
    assert (claim.start, claim.stop) == (2, 5)


def test_an_empty_pool_says_so() -> None:
    pool = PagePool(1)
    pool.allocate()
    assert pool.claim(1) is None
    with pytest.raises(OutOfPages) as caught:
        pool.allocate()
    assert (caught.value.needed_pages, caught.value.free_pages) == (1, 0)


def test_a_page_is_free_again_after_its_last_holder_lets_go() -> None:
    pool = PagePool(2)
    page = pool.allocate()
    pool.share(page)
    assert pool.release(page) == 1
    assert pool.num_free == 1
    assert pool.release(page) == 0
    assert pool.free_pages() == [0, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=200), st.integers(1, 12))
def test_counts_agree_with_a_plain_model_after_any_history(actions: list[int], num_pages: int) -> None:
    pool = PagePool(num_pages)
    held: list[int] = []
    claims: list[Claim] = []
    for action in actions:
        if action <= 1:
            if pool.num_free:
                held.append(pool.allocate(held[-1] + 1 if held else None, claims[-1] if claims else None))
        elif action == 2 and held:
            pool.share(held[0])
            held.append(held[0])
        elif action == 3 and held:
            pool.release(held.pop(0))
        elif action == 4:
            claim = pool.claim(3)
            if claim is not None:
                claims.append(claim)
        elif claims:
            pool.unclaim(claims.pop())
        pool.check_integrity()
    assert [pool.refs(page) for page in range(num_pages)] == [held.count(page) for page in range(num_pages)]
    assert pool.num_free == num_pages - len(set(held))


def test_a_short_run_is_found_before_a_long_one() -> None:
    pool = PagePool(32)
    held = [pool.allocate() for _ in range(32)]
    for page in [*range(4), *range(8, 10), *range(16, 32)]:
        pool.release(held[page])
    found = [pool.claim(length) for length in (2, 4, 10)]
    assert found == [Claim(8, 10), Claim(0, 4), Claim(16, 26)]


def test_pages_given_back_join_what_lies_on_both_sides() -> None:
    pool = PagePool(9)
    claims = [pool.claim(3) for _ in range(3)]
    for at in (0, 2, 1):
        claim = claims[at]
        assert claim is not None
        pool.unclaim(claim)
    assert pool.claim(9) == Claim(0, 9)


def test_a_claim_that_is_given_up_leaves_taken_pages_alone() -> None:
    pool = PagePool(8)
    claim = pool.claim(8)
    assert claim is not None
    for page in (2, 3, 6):
        assert pool.allocate(page, claim) == page
    pool.unclaim(claim)
    pool.check_integrity()
    assert pool.claim(8) in (Claim(0, 2), Claim(4, 6))
    assert {pool.allocate() for _ in range(5)} == {0, 1, 4, 5, 7}


def test_a_page_in_the_middle_of_a_run_can_be_taken() -> None:
    pool = PagePool(8)
    assert pool.allocate(5) == 5
    pool.check_integrity()
    assert pool.claim(8) == Claim(0, 5)
