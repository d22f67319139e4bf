"""Runs in Redis: written by who has the token, read by their owner, bounded, never half of anything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis

from gateway.state import run_store
from gateway.state.run_store import MAX_INPUTS, RunBounds, RunStore, Told

BOUNDS = RunBounds(runs=3, bytes=20_000, event_bytes=2_000, ttl_s=600, live_s=600)


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RunStore]:
    """Keeps three runs of an owner."""
    store = RunStore(redis_url, BOUNDS)
    yield store
    await store.aclose()


async def begun(store: RunStore, run_id: str, owner: str = "ann") -> str:
    assert await store.create(run_id, owner, f"token {run_id}", {"model": "tiny"})
    return f"token {run_id}"


def told(*numbers: int, size: int = 1) -> Told:
    return Told(events=[(b"%d" % number).ljust(size) for number in numbers], last=numbers[-1])


async def end(store: RunStore, run_id: str, number: int = 0, answer: dict[str, Any] | None = None) -> bool:
    return await store.settle(run_id, f"token {run_id}", told(number), "completed", answer or {"a": 1}, None)


async def all_events(store: RunStore, run_id: str) -> list[int]:
    async for events in store.events(run_id):
        return [int(one) for one in events]
    raise AssertionError


async def test_what_is_written_is_read_by_its_owner_alone(store: RunStore) -> None:
    token = await begun(store, "r1")
    assert await store.append("r1", token, told(0, 1))
    found = await store.read("r1", "ann")
    assert found is not None
    assert (found.status, found.last, found.head, found.ended) == ("in_progress", 1, {"model": "tiny"}, None)
    assert await store.read("r1", "bob") is None
    assert await store.read("r1", "") is None
    assert await store.read("r2", "ann") is None
    assert await end(store, "r1", 2)
    found = await store.read("r1", "ann")
    assert found is not None
    assert (found.status, found.last, found.answer, found.error) == ("completed", 2, {"a": 1}, None)
    assert await all_events(store, "r1") == [0, 1, 2]


async def test_events_that_are_sent_again_are_there_once(store: RunStore) -> None:
    token = await begun(store, "r1")
    for _ in range(3):
        assert await store.append("r1", token, told(0, 1))
        assert await store.create("r1", "ann", token, {})
    assert await all_events(store, "r1") == [0, 1]
    assert [await end(store, "r1", 2) for _ in range(3)] == [True] * 3
    assert await all_events(store, "r1") == [0, 1, 2]


async def test_who_has_not_the_token_writes_nothing(store: RunStore) -> None:
    await begun(store, "r1")
    assert not await store.append("r1", "other", told(0))
    assert not await store.settle("r1", "other", told(0), "failed", {}, {})
    assert await store.beat([("r1", "other"), ("r1", "token r1"), ("gone", "x")]) == [0, 1, 0]
    await end(store, "r1")
    assert not await store.append("r1", "token r1", told(1))
    assert not await store.settle("r1", "token r1", told(1), "failed", {}, {})
    found = await store.find("r1")
    assert found is not None
    assert found.status == "completed"


async def test_a_cancellation_reaches_who_beats(store: RunStore) -> None:
    token = await begun(store, "r1")
    assert await store.beat([("r1", token)]) == [1]
    await store.ask_cancel("r1")
    assert await store.beat([("r1", token)]) == [2]
    await end(store, "r1")
    await store.ask_cancel("r1")
    found = await store.find("r1")
    assert found is not None
    assert found.status == "completed"


async def test_only_what_nobody_works_on_is_given_up(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    token = await begun(store, "r1")
    await begun(store, "r2")
    await end(store, "r2")
    assert not await store.give_up("r1", told(0), "failed", {"code": "lost"})
    monkeypatch.setattr(run_store, "LEASE_MS", 1)
    assert await store.beat([("r1", token)]) == [1]
    await asyncio.sleep(0.01)
    assert await store.overdue() == {"r1": False}
    await store.append("r1", token, told(0))
    assert not await store.give_up("r1", told(0), "failed", {"code": "lost"})  # it has other events by now
    assert await store.give_up("r1", told(1), "failed", {"code": "lost"})
    found = await store.find("r1")
    assert found is not None
    assert (found.status, found.error) == ("failed", {"code": "lost"})
    assert await all_events(store, "r1") == [0, 1]
    assert await store.overdue() == {}
    assert await store.beat([("r1", token)]) == [0]


async def test_the_oldest_that_has_ended_makes_room_and_what_runs_stays(store: RunStore) -> None:
    for name in ("r1", "r2", "r3"):
        await begun(store, name)
    assert not await store.create("r4", "ann", "t", {})
    await end(store, "r2")
    assert await store.create("r4", "ann", "t", {})
    assert await store.find("r2") is None
    assert await store.find("r1") is not None
    assert await store.create("r1b", "bob", "t", {})


async def test_bytes_of_an_owner_are_bounded(store: RunStore, redis_url: str) -> None:
    await begun(store, "r1")
    await end(store, "r1", answer={"text": "x" * 15_000})
    await begun(store, "r2")
    assert await store.find("r1") is not None
    await end(store, "r2", answer={"text": "x" * 15_000})
    assert await store.find("r1") is None
    await store.drop("r2")
    with Redis.from_url(redis_url) as redis:
        assert redis.get("{wye}:prs:ann") == b"0"
        assert sorted(redis.keys()) == [b"{wye}:prs:ann"]


async def test_the_oldest_events_of_a_run_make_room_for_newer_ones(store: RunStore) -> None:
    token = await begun(store, "r1")
    for number in range(30):
        assert await store.append("r1", token, told(number, size=200))
    found = await store.find("r1")
    assert found is not None
    assert (found.first, found.last) == (20, 29)
    assert await all_events(store, "r1") == list(range(20, 30))


async def test_pages_go_from_the_newest_to_the_oldest(store: RunStore) -> None:
    for name in ("r1", "r2", "r3"):
        await begun(store, name)
        await asyncio.sleep(0.002)
    await begun(store, "other", "bob")
    pages = [await store.page("ann", after=after, limit=2) for after in (None, "r2", "r1")]
    assert [[run.id for run in page or []] for page in pages] == [["r3", "r2"], ["r1"], []]
    assert await store.page("ann", after="other", limit=2) is None
    assert await store.page("bob", after="r1", limit=2) is None


async def test_input_is_for_what_runs_of_its_owner_and_bounded(store: RunStore) -> None:
    await begun(store, "r1")
    assert await store.add_input("r1", "bob", b"1") == 0
    assert [await store.add_input("r1", "ann", b"%d" % number) for number in range(3)] == [1, 2, 3]
    assert await store.inputs("r1", 1) == [b"1", b"2"]
    for number in range(3, MAX_INPUTS):
        await store.add_input("r1", "ann", b"%d" % number)
    assert await store.add_input("r1", "ann", b"x") == -2
    await end(store, "r1")
    assert await store.add_input("r1", "ann", b"x") == -1
    await begun(store, "r2")
    assert await store.add_input("r2", "ann", b"x" * (4 * 2**20 + 1)) == -2


async def test_a_run_goes_when_its_time_is_over(redis_url: str) -> None:
    store = RunStore(redis_url, RunBounds(runs=3, bytes=20_000, event_bytes=2_000, ttl_s=1, live_s=1))
    await begun(store, "r1")
    await end(store, "r1")
    await asyncio.sleep(1.05)
    assert await store.read("r1", "ann") is None
    assert await store.page("ann", after=None, limit=2) == []
    with Redis.from_url(redis_url) as redis:
        assert set(redis.keys()) <= {b"{wye}:prs:ann"}
    await store.aclose()
