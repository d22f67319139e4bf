"""Values of programs: what one has kept another of the same owner finds, within bounds, however an answer is lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway.state.run_values import OwnerValues, ProgramValues


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[ProgramValues]:
    """Keeps little."""
    store = ProgramValues(redis_url, max_keys=4, max_bytes=100)
    yield store
    await store.aclose()


async def keep(values: OwnerValues, key: str, value: object, *, ttl_s: float | None = None, new: bool = False) -> bool:
    return await values.put(key, json.dumps(value).encode(), ttl_s=ttl_s, only_new=new)


async def test_what_is_kept_is_found_until_it_is_deleted(store: ProgramValues) -> None:
    ann = store.of("ann")
    assert await ann.get("a") is None
    assert await keep(ann, "a", [1, "é"])
    assert json.loads(await ann.get("a") or b"") == [1, "é"]
    assert not await keep(ann, "a", 2, new=True)
    assert await keep(ann, "a", 3)
    assert await ann.get("a") == b"3"
    assert await ann.delete("a")
    assert not await ann.delete("a")
    assert await ann.get("a") is None


@pytest.mark.parametrize(("one", "other"), [("ann", "bob"), ("", "a"), ("a:b", "a"), ("1:a", "a")])
async def test_no_owner_sees_what_another_keeps(store: ProgramValues, one: str, other: str) -> None:
    await keep(store.of(one), "b:k", "mine")
    assert await store.of(other).get("b:k") is None
    assert await store.of(other).get("k") is None
    assert not await store.of(other).delete("b:k")
    assert await store.of(one).get("b:k") == b'"mine"'


async def test_a_value_goes_when_its_time_is_over_and_leaves_its_room(store: ProgramValues, redis_url: str) -> None:
    ann = store.of("ann")
    await keep(ann, "short", "x" * 80, ttl_s=60)
    with pytest.raises(MemoryError, match="limit_exceeded"):
        await keep(ann, "more", "y" * 80)
    await keep(ann, "short", "x" * 80, ttl_s=0.05)
    await asyncio.sleep(0.06)
    assert await ann.get("short") is None
    assert await keep(ann, "more", "y" * 80)
    await ann.delete("more")
    with Redis.from_url(redis_url) as redis:
        assert redis.get("{wye}:pvs:ann") == b"0"


async def test_the_time_of_a_value_is_that_of_its_last_put(store: ProgramValues) -> None:
    ann = store.of("ann")
    await keep(ann, "a", 1, ttl_s=0.05)
    await keep(ann, "a", 2)
    await asyncio.sleep(0.06)
    assert await ann.get("a") == b"2"


async def test_room_is_bounded_by_count_and_by_bytes_for_each_owner(store: ProgramValues) -> None:
    ann = store.of("ann")
    for name in "abcd":
        assert await keep(ann, name, 1)
    with pytest.raises(MemoryError, match="limit_exceeded: at most 4 values of 100 bytes"):
        await keep(ann, "e", 1)
    with pytest.raises(MemoryError, match="limit_exceeded"):
        await ann.add("e", 1)
    assert await keep(ann, "a", "x" * 80)
    with pytest.raises(MemoryError, match="limit_exceeded"):
        await keep(ann, "b", "x" * 80)
    assert await ann.get("b") == b"1"
    assert await keep(store.of("bob"), "a", "x" * 80)


async def test_sums_are_exact_whoever_adds_at_once(store: ProgramValues) -> None:
    ann = store.of("ann")
    await asyncio.gather(*(store.of("ann").add("n", 1) for _ in range(40)))
    total = await ann.add("n", -50)
    assert (total, type(total)) == (-10, int)
    assert await ann.get("n") == b"-10"
    assert await ann.add("half", 0.5) == 0.5
    total = await ann.add("half", 0.5)
    assert (total, type(total)) == (1.0, float)
    assert await ann.add("n", 2**53) == 2**53 - 10


@pytest.mark.parametrize(("kept", "amount"), [("text", 1), ([1], 1), (None, 1), (2**53, 1), (1e308, 1e308)])
async def test_what_cannot_be_added_to_stays_as_it_is(store: ProgramValues, kept: object, amount: float) -> None:
    ann = store.of("ann")
    await keep(ann, "a", kept)
    with pytest.raises(ValueError, match="invalid_argument"):
        await ann.add("a", amount)
    assert json.loads(await ann.get("a") or b"") == kept


async def test_a_store_that_is_away_is_told_as_such() -> None:
    store = ProgramValues("redis://127.0.0.1:1/0", max_keys=1, max_bytes=1)
    with pytest.raises(RuntimeError, match="store_unavailable"):
        await store.of("ann").get("a")
    await store.aclose()


async def test_a_change_whose_answer_was_lost_is_made_once(store: ProgramValues) -> None:
    script = store.adding
    keys = ["{wye}:pv:ann", "{wye}:pvx:ann", "{wye}:pvs:ann", "{wye}:po:1"]
    answers = [await script(keys=keys, args=["n", "9", "999", "5", "30000"]) for _ in range(3)]
    assert answers == [b"5"] * 3
