"""Batches go on whatever happens to who works on them, and no recorded line is lost or done twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from engine.text.model import TextModel
from gateway.batches.journal import Journal
from gateway.state.batch_records import LineUsage, Place
from gateway.state.batches import BatchStore
from gateway.state.embedded import EmbeddedRedis, find_server
from gateway.state.leases import Lease, LeaseLost
from tests.fakes import ScriptedEngine, running_server
from tests.gateway.batches.conftest import Start
from tests.gateway.batches.wire import (
    BATCHES,
    Worker,
    begin,
    ended,
    get,
    ids,
    lapse,
    left_on_disk,
    line,
    results,
    until,
)
from tests.gateway.wire import Body

NUM_LINES = 12


async def check_all_once(worker: Worker, batch_id: str) -> Body:
    """Waits for a batch and checks that every line has one result."""
    batch = await ended(worker.client, batch_id)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": NUM_LINES, "completed": NUM_LINES, "failed": 0}
    found = await results(worker.client, batch["output_file_id"])
    assert ids(found) == [f"line-{number}" for number in range(NUM_LINES)]
    tokens = sum(item["response"]["body"]["usage"]["total_tokens"] for item in found)
    assert batch["usage"]["total_tokens"] == tokens
    return batch


def stuck_after(model: TextModel, engine: ScriptedEngine, count: int, gate: asyncio.Event) -> Any:
    """A script in which the first `count` requests are answered and all others wait at a gate."""
    words = model.tokenizer.encode("Hello there.", add_special=False)
    return lambda request, index: [words] if len(engine.requests) <= count else [words[:1], gate, words[1:]]


async def test_a_worker_that_is_heard_of_no_more_is_replaced_and_can_write_nothing(
    start: Start,
    engine: ScriptedEngine,
    model: TextModel,
    redis_url: str,
    quick: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = start(batch_lines=4), start(batch_lines=4)
    gate = asyncio.Event()
    engine.script = stuck_after(model, engine, 5, gate)
    first.start()
    made = await begin(first.client, [line(number) for number in range(NUM_LINES)])
    await until(lambda: len(engine.requests) == 9)
    silent, is_silent = asyncio.Event(), asyncio.Event()

    async def say_nothing(**_: Any) -> None:
        is_silent.set()
        await silent.wait()

    async def claim_nothing(**_: Any) -> None:
        await silent.wait()

    leases = first.services.runner.tools.records.leases
    monkeypatch.setattr(leases, "_claim", claim_nothing)
    monkeypatch.setattr(leases, "renewing", say_nothing)
    await is_silent.wait()  # it has said the last that it says
    lapse(redis_url, made["id"])
    second.start()
    await until(lambda: len(engine.requests) == 13)
    # Both have lines in flight, some of them the same; what the first one gets is refused.
    gate.set()
    await check_all_once(second, made["id"])
    await until(lambda: not first.services.runner.num_jobs)
    silent.set()
    monkeypatch.undo()
    assert 13 <= len(engine.requests) <= NUM_LINES + 4


async def test_a_worker_that_stops_finishes_its_lines_and_hands_over(
    engine: ScriptedEngine, model: TextModel, start: Start, redis_url: str, tmp_path: Path, quick: None
) -> None:
    second = start(batch_lines=4)
    words = model.tokenizer.encode("Hello there.", add_special=False)
    gate = asyncio.Event()
    engine.script = lambda request, index: [words[:1], gate, words[1:]]
    made = await begin(second.client, [line(number) for number in range(NUM_LINES)])
    settings = {"redis_url": redis_url, "files_dir": str(tmp_path), "batch_lines": 4}
    with running_server(engine, model, **settings) as server:
        await until(lambda: len(engine.requests) == 4)
        server.begin_drain()
        await until(lambda: server.is_draining)
        server.call(gate.set)
        await asyncio.to_thread(server.join)
        assert not server.is_running
    assert len(engine.requests) == 4
    assert engine.aborted == []
    batch = await get(second.client, f"{BATCHES}/{made['id']}")
    assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 4)
    second.start()
    await check_all_once(second, made["id"])
    assert len(engine.requests) == NUM_LINES


async def test_lines_that_outlast_a_drain_are_done_by_another_worker(
    model: TextModel, start: Start, engine: ScriptedEngine, redis_url: str, tmp_path: Path, quick: None
) -> None:
    other = ScriptedEngine(model, lambda request, index: [[40], 1000.0])
    second = start()
    made = await begin(second.client, [line(number) for number in range(NUM_LINES)])
    settings = {"redis_url": redis_url, "files_dir": str(tmp_path), "batch_lines": 4, "drain_s": 0.2}
    with running_server(other, model, **settings) as server:
        await until(lambda: len(other.requests) == 4)
        server.begin_drain()
        await asyncio.to_thread(server.join)
        assert not server.is_running
    second.start()
    await check_all_once(second, made["id"])
    assert len(engine.requests) == NUM_LINES


async def test_a_stop_at_once_ends_lines_in_flight_and_hands_over(
    start: Start, engine: ScriptedEngine, model: TextModel, quick: None
) -> None:
    first, second = start(batch_lines=4), start()
    gate = asyncio.Event()
    engine.script = stuck_after(model, engine, 5, gate)
    first.start()
    made = await begin(first.client, [line(number) for number in range(NUM_LINES)])
    await until(lambda: len(engine.streams) == 4 and len(engine.requests) == 9)
    # Written down by another task, a moment after the answer.
    while (await get(first.client, f"{BATCHES}/{made['id']}"))["request_counts"]["completed"] < 5:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await first.services.runner.aclose()
    assert engine.streams == {}
    assert first.services.lifecycle.num_active == 0
    gate.set()
    second.start()
    await check_all_once(second, made["id"])
    assert len(engine.requests) == 9 + NUM_LINES - 5


async def test_a_process_that_dies_while_results_are_put_together_leaves_one_file(
    start: Start, redis_url: str, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start()
    runner = worker.services.runner
    finish, num_tries = Lease.finish, 0

    async def die_first(self: Lease, *args: Any, **fields: Any) -> None:
        nonlocal num_tries
        num_tries += 1
        if num_tries == 1:
            raise AssertionError("died")
        await finish(self, *args, **fields)

    monkeypatch.setattr(Lease, "finish", die_first)
    worker.start()
    made = await begin(worker.client, [line(number) for number in range(NUM_LINES)])
    await until(lambda: num_tries and not runner.num_jobs)
    lapse(redis_url, made["id"])
    batch = await check_all_once(worker, made["id"])
    assert num_tries == 2
    listed = [item["id"] for item in (await get(worker.client, "/v1/files"))["data"]]
    assert sorted(listed) == sorted([made["input_file_id"], batch["output_file_id"]])
    monkeypatch.setattr("gateway.state.file_bytes._STALE_S", -1.0)
    await worker.services.files.sweep([])
    assert left_on_disk(tmp_path) == sorted(listed)


async def test_a_disk_that_is_full_for_a_while_loses_nothing(
    start: Start, engine: ScriptedEngine, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.batches.job.TROUBLE_PAUSE_S", 0.05)
    append, num_tries = Journal._append, 0

    def full(self: Journal, data: bytes) -> None:
        nonlocal num_tries
        num_tries += 1
        if num_tries in (2, 3):
            raise OSError(28, "No space left on device")
        append(self, data)

    monkeypatch.setattr(Journal, "_append", full)
    worker = start(batch_lines=2)
    worker.start()
    made = await begin(worker.client, [line(number) for number in range(NUM_LINES)])
    await check_all_once(worker, made["id"])
    assert num_tries > 3


async def test_a_batch_goes_on_after_a_restart_of_its_redis(
    engine: ScriptedEngine, model: TextModel, tmp_path: Path, quick: None
) -> None:
    redis = EmbeddedRedis(tmp_path / "redis", find_server())
    redis.start()
    gate = asyncio.Event()
    engine.script = stuck_after(model, engine, 5, gate)
    worker = Worker(engine, model, redis_url=redis.url, files_dir=str(tmp_path / "files"))
    worker.start()
    made = await begin(worker.client, [line(number) for number in range(NUM_LINES)])
    await until(lambda: len(engine.requests) == NUM_LINES)
    redis.stop()
    gate.set()
    await until(lambda: not engine.streams)
    redis.start()
    await check_all_once(worker, made["id"])
    await worker.close()
    redis.stop()


def cut_off(worker: Worker) -> None:
    """What a worker sees whose network is gone: it cannot say anything any more, and does not know what others do."""

    async def fail(**_: Any) -> None:
        raise RedisConnectionError("no route to host")

    leases = worker.services.runner.tools.records.leases
    for name in ("renewing", "releasing", "recording", "finishing", "_move", "_claim"):
        setattr(leases, name, fail)


@pytest.mark.parametrize("seed", range(3))
async def test_workers_come_and_go_as_they_like(
    start: Start, engine: ScriptedEngine, model: TextModel, quick: None, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    # Here leases end by themselves, too early as well: no batch may be given up for that.
    monkeypatch.setattr("gateway.state.leases.LEASE_S", 0.6)
    monkeypatch.setattr("gateway.batches.job.MAX_FRUITLESS", 10**6)
    monkeypatch.setattr("gateway.batches.journal.PATIENCE_S", 0.2)
    monkeypatch.setattr("gateway.batches.job.TROUBLE_PAUSE_S", 0.05)
    rng = random.Random(seed)
    words = model.tokenizer.encode("Hello there.", add_special=False)
    engine.script = lambda request, index: [words[:1], rng.random() / 50, words[1:]]
    client = start().client
    made = [await begin(client, [line(number) for number in range(NUM_LINES)]) for _ in range(4)]
    for _ in range(6):
        worker = start(batch_lines=rng.randint(1, 4))
        worker.start()
        await asyncio.sleep(rng.random() / 10)
        match rng.randrange(3):
            case 0:
                await worker.services.runner.aclose()
            case 1:
                worker.services.runner.begin_drain()
            case 2:
                cut_off(worker)
    last = start()
    last.start()
    for batch in made:
        await check_all_once(last, batch["id"])


async def test_a_batch_with_which_workers_keep_dying_fails_with_what_it_has(
    start: Start, engine: ScriptedEngine, model: TextModel, redis_url: str, quick: None
) -> None:
    worker = start(batch_lines=4)
    engine.script = stuck_after(model, engine, 5, asyncio.Event())
    worker.start()
    made = await begin(worker.client, [line(number) for number in range(NUM_LINES)])
    await until(lambda: len(engine.requests) == 9)
    await worker.services.runner.aclose()
    with Redis.from_url(redis_url) as redis:
        redis.hset(f"{{wye}}:b:{made['id']}", "fruitless", 10)
    second = start()
    second.start()
    batch = await ended(second.client, made["id"])
    assert batch["status"] == "failed"
    assert batch["errors"]["data"][0]["code"] == "server_error"
    assert ids(await results(second.client, batch["output_file_id"])) == [f"line-{number}" for number in range(5)]
    undone = await results(second.client, batch["error_file_id"])
    assert {item["error"]["code"] for item in undone} == {"batch_failed"}


async def test_an_input_that_is_gone_fails_the_batch(start: Start, tmp_path: Path, quick: None) -> None:
    worker = start()
    made = await begin(worker.client, [line(1)])
    (await worker.services.files.bytes()).batch_directory(made["id"]).joinpath("input.jsonl").unlink()
    worker.start()
    batch = await ended(worker.client, made["id"])
    assert (batch["status"], batch["errors"]["data"][0]["code"]) == ("failed", "file_not_found")


async def test_a_line_is_counted_once_however_often_it_is_told(start: Start) -> None:
    worker = start()
    made = await begin(worker.client, [line(1)])
    records: BatchStore = worker.services.runner.tools.records
    lease = await records.claim()
    assert lease is not None
    assert await records.claim() is None
    told = [(1, Place("1.jsonl", 0, 5, True), LineUsage(3, 0, 2, 0))]
    await lease.record(told)
    await lease.record(told)
    batch = await records.read(made["id"])
    assert batch is not None
    assert (batch.shown()["request_counts"]["completed"], batch.shown()["usage"]["total_tokens"]) == (1, 5)
    await lease.release()
    with pytest.raises(LeaseLost):
        await lease.record([(2, Place("1.jsonl", 5, 5, True), LineUsage())])
    with pytest.raises(LeaseLost):
        await lease.renew()
    with pytest.raises(LeaseLost):
        await lease.move("finalizing", ("validating",))
    with pytest.raises(LeaseLost):
        await lease.finish("completed", [])
    assert await records.places(made["id"], [1, 2]) == [Place("1.jsonl", 0, 5, True), None]
