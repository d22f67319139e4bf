"""The store keeps records within its bounds, shows each to its owner alone, and says when it is not there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway.errors import StoreUnavailable
from gateway.state.embedded import EmbeddedRedis, find_server
from gateway.state.scripts import OVERHEAD_BYTES
from gateway.state.store import Bounds, ResponseStore, TooLargeToStore


def record(owner: str = "", **fields: Any) -> dict[str, Any]:
    return {"owner": owner, "kind": "response", "status": "completed", **fields}


async def body_of(store: ResponseStore, record_id: str, owner: str = "") -> Any:
    found = await store.read(record_id, owner, "response", "body")
    return None if found is None else found["body"]


def total(url: str) -> int:
    with Redis.from_url(url) as client:
        return int(client.get("{wye}:total") or 0)


async def test_a_record_is_read_as_it_was_written(store: ResponseStore) -> None:
    body = {"text": "ä" * 5000, "number": 1.5, "none": None, "list": [1, "2"]}
    assert await store.put("resp_1", record("123", body=body))
    assert await store.read("resp_1", "123", "response", "body", "status", "absent") == {
        "body": body,
        "status": "completed",
        "absent": None,
    }


async def test_others_and_other_kinds_do_not_see_it(store: ResponseStore) -> None:
    await store.put("resp_1", record("a", body=1))
    assert await store.read("resp_1", "b", "response", "body") is None
    assert await store.read("resp_1", "a", "conversation", "body") is None
    assert await store.read("resp_2", "a", "response", "body") is None


async def test_what_was_dropped_is_gone_with_all_its_parts(store: ResponseStore, redis_url: str) -> None:
    await store.put("conv_1", {"owner": "", "kind": "conversation"})
    await store.add_items("conv_1", [{"id": "msg_1"}, {"id": "msg_2"}])
    await store.put("resp_1", record(body=1), item_ids=["msg_3"])
    await store.add_events("resp_1", [b"{}"])
    assert await store.holders(["msg_1", "msg_3", "msg_4"]) == {"msg_1": "conv_1", "msg_3": "resp_1"}
    assert await store.drop("conv_1")
    assert await store.drop("resp_1")
    assert not await store.drop("resp_1")
    with Redis.from_url(redis_url) as client:
        assert client.keys() == [b"{wye}:total"]
    assert total(redis_url) == 0


async def test_g_72_the_oldest_go_when_there_are_too_many(redis_url: str) -> None:
    store = ResponseStore(redis_url, Bounds(count=10, bytes=10**9, ttl_s=3600))
    for number in range(50):
        await store.put(f"resp_{number}", record(body=number), item_ids=[f"msg_{number}"])
    assert [await body_of(store, f"resp_{number}") for number in range(40)] == [None] * 40
    assert [await body_of(store, f"resp_{number}") for number in range(40, 50)] == list(range(40, 50))
    with Redis.from_url(redis_url) as client:
        assert client.hlen("{wye}:index") == client.hlen("{wye}:sizes") == client.zcard("{wye}:order") == 10
    assert 10 * OVERHEAD_BYTES < total(redis_url) < 20 * OVERHEAD_BYTES
    await store.aclose()


async def test_the_oldest_go_when_they_are_too_large(redis_url: str) -> None:
    store = ResponseStore(redis_url, Bounds(count=1000, bytes=6000, ttl_s=3600))
    await store.put("resp_0", record(body="x" * 400))
    await store.put("resp_1", record(body="x" * 400))
    await store.put("conv_1", {"owner": "", "kind": "conversation"})
    await store.add_items("conv_1", [{"id": f"msg_{number}", "text": "y" * 100} for number in range(28)])
    assert await body_of(store, "resp_0") is None
    assert await body_of(store, "resp_1") is not None
    assert total(redis_url) <= 6000
    with pytest.raises(TooLargeToStore):
        await store.put("resp_2", record(body=[str(number) for number in range(10_000)]))
    with pytest.raises(TooLargeToStore):
        await store.add_items("conv_1", [{"id": "msg_x", "text": "z" * 6000}])
    assert len(await store.items("conv_1")) == 28
    await store.aclose()


async def test_sizes_are_true_whatever_is_changed(store: ResponseStore, redis_url: str) -> None:
    await store.put("conv_1", {"owner": "", "kind": "conversation", "metadata": {}})
    empty = total(redis_url)
    await store.add_items("conv_1", [{"id": "msg_1", "text": "one"}])
    one = total(redis_url)
    await store.add_items("conv_1", [{"id": "msg_2", "text": "two"}])
    await store.add_items("conv_1", [{"id": "msg_1", "text": "one"}])
    await store.drop_item("conv_1", "msg_2")
    assert not await store.drop_item("conv_1", "msg_2")
    assert total(redis_url) == one
    await store.drop_item("conv_1", "msg_1")
    await store.put("conv_1", {"metadata": {"a": "b"}}, mode="update")
    await store.put("conv_1", {"metadata": {}}, mode="update")
    with Redis.from_url(redis_url) as client:
        assert total(redis_url) == int(client.hget("{wye}:sizes", "conv_1") or 0)
    assert total(redis_url) == empty
    await store.drop("conv_1")
    assert total(redis_url) == 0


async def test_what_is_too_old_is_gone_even_if_nothing_is_written(redis_url: str) -> None:
    store = ResponseStore(redis_url, Bounds(count=10, bytes=10**9, ttl_s=100))
    await store.put("resp_1", record(body=1))
    await store.put("resp_2", record(body=2))
    with Redis.from_url(redis_url) as client:
        client.zincrby("{wye}:order", -101_000, "resp_1")
        assert await body_of(store, "resp_1") is None
        assert await body_of(store, "resp_2") == 2
        assert client.zcard("{wye}:order") == 1
    await store.aclose()


async def test_an_update_never_brings_back_what_is_gone(store: ResponseStore) -> None:
    assert not await store.put("resp_1", record(body=1), mode="update")
    assert not await store.add_items("resp_1", [{"id": "msg_1"}])
    assert not await store.add_events("resp_1", [b"{}"])
    assert await body_of(store, "resp_1") is None


async def test_a_response_is_settled_once(store: ResponseStore) -> None:
    await store.put("resp_1", record(body=0) | {"status": "in_progress"})
    assert await store.put("resp_1", {"status": "cancelled", "body": 1}, mode="settle")
    assert not await store.put("resp_1", {"status": "completed", "body": 2}, mode="settle")
    assert await body_of(store, "resp_1") == 1


async def test_items_keep_their_order(store: ResponseStore) -> None:
    await store.put("conv_1", {"owner": "", "kind": "conversation"})
    items = [{"id": f"msg_{number}", "n": number} for number in range(25)]
    await asyncio.gather(*(store.add_items("conv_1", items[at : at + 1]) for at in range(20)))
    await store.add_items("conv_1", items[20:])
    found = await store.items("conv_1")
    assert sorted(item["n"] for item in found) == list(range(25))
    assert found[20:] == items[20:]


async def test_events_are_followed_as_they_come(store: ResponseStore) -> None:
    await store.put("resp_1", record(body=1))
    await store.add_events("resp_1", [b'{"n":0}', b'{"n":1}'])
    batches = store.events("resp_1")
    assert await anext(batches) == [b'{"n":0}', b'{"n":1}']
    news = asyncio.ensure_future(anext(batches))
    await store.add_events("resp_1", [b'{"n":2,"text":"' + b"x" * 5000 + b'"}'])
    assert await news == [b'{"n":2,"text":"' + b"x" * 5000 + b'"}']


async def test_whoever_works_on_a_response_learns_that_it_is_cancelled(store: ResponseStore) -> None:
    assert not await store.is_alive("resp_1")
    assert await store.beat(["resp_1", "resp_2"]) == set()
    assert await store.is_alive("resp_1")
    await store.ask_cancel("resp_2")
    assert await store.beat(["resp_1", "resp_2"]) == {"resp_2"}
    await store.forget_run("resp_2")
    assert not await store.is_alive("resp_2")
    assert await store.beat(["resp_2"]) == set()


async def test_a_store_that_is_away_is_said_to_be_and_comes_back(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path, find_server())
    server.start()
    store = ResponseStore(server.url, Bounds(count=10, bytes=10**9, ttl_s=100))
    await store.put("resp_1", record(body=1))
    server.stop()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await store.check()
    with pytest.raises(StoreUnavailable):
        await store.put("resp_2", record(body=1))
    server.start()
    await store.check()
    assert await body_of(store, "resp_1") == 1
    await store.put("resp_2", record(body=2))
    await store.aclose()
    server.stop()
