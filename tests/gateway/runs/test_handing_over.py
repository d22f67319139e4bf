"""Runs of a worker that stops go on in another: nothing is lost, nothing is done twice, nothing is left unknown."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from extensions.journal.entries import Entry
from gateway.errors import StoreUnavailable
from gateway.runs import making, service, watching
from gateway.runs.endings import NO_JOURNAL
from gateway.runs.journal import FULL, RunJournal
from gateway.state import run_store
from gateway.state.store import PREFIX
from tests.fakes import ScriptedEngine, running_server, says
from tests.gateway.runs.test_resuming import AGENT, CHILD, PARENT, WORDS, check_whole
from tests.gateway.runs.workers import RUNS, Worker, begin, ended, events, get, kinds, lapse, main_of, problem, until
from tests.gateway.tenancy.conftest import ADMIN_KEY, BY, bearer
from tests.gateway.wire import CHAT, Body, chat

RECEIVES = """
await lm.emit("on")
return [await lm.receive(), await lm.receive()]
"""
ADDS = """
try:
    return await lm.store.add("paid")
except RuntimeError as error:
    return str(error).split(":")[0]
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are handed over are gone on with at once; those of workers that are gone never."""
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    monkeypatch.setattr(watching, "LOOK_S", 0.02)
    monkeypatch.setattr(watching, "GRACE_S", 1000.0)
    monkeypatch.setattr(run_store, "LEASE_MS", 3_600_000)
    monkeypatch.setattr(making, "BACKOFF_S", (0.01,))


@pytest.fixture
def engine(model: TextModel) -> ScriptedEngine:
    """Says the same a few tokens at a time."""
    return ScriptedEngine(model, says(model, WORDS, per_event=4))


class Parting(RunJournal):
    """A journal whose run is handed over once so many entries are written."""

    def __init__(self, run_id: str, most: int, part: Callable[[str], None]) -> None:
        super().__init__(run_id, 10**9)
        self._left = most
        self._part = part

    def put(self, entry: Entry) -> None:
        super().put(entry)
        self._left -= 1
        if self._left == 0:
            self._loop.call_soon_threadsafe(self._part, self.name)


class Parter:
    """Hands over each run of a worker after another entry of its journal."""

    def __init__(self, worker: Worker, monkeypatch: pytest.MonkeyPatch, most: Iterator[int]) -> None:
        self._runs = worker.services.detached_runs
        self._parting: list[asyncio.Task[None]] = []
        monkeypatch.setattr(self._runs, "sink", lambda run_id: Parting(run_id, next(most), self._part))
        monkeypatch.setattr(self._runs, "watch", lambda: None)

    def _part(self, run_id: str) -> None:
        self._parting.append(asyncio.ensure_future(self._hand_over(run_id)))

    async def _hand_over(self, run_id: str) -> None:
        await until(lambda: run_id in self._runs._makings)
        await self._runs._makings[run_id].hand_over()


async def counted(worker: Worker) -> Any:
    """How often it was paid."""
    return (await ended(worker.ann, (await begin(worker.ann, "return await lm.store.get('paid', 0)"))["id"]))["result"]


async def has_said(worker: Worker, run_id: str) -> bool:
    """A run has given something out."""
    return bool((await get(worker.ann, f"/{run_id}"))["last_sequence_number"] >= 1)


@pytest.mark.parametrize("start", range(2))
async def test_handed_over_anywhere_a_run_comes_to_the_same_and_knows_all_that_it_did(
    engine: ScriptedEngine,
    model: TextModel,
    redis_url: str,
    there: Worker,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
) -> None:
    victim = Worker(engine, model, redis_url)
    whole = await ended(there.ann, (await begin(there.ann, AGENT))["id"])
    Parter(victim, monkeypatch, itertools.count(1 + start, 2))
    runs = [await begin(victim.ann, AGENT) for _ in range(15)]
    done = [await ended(there.ann, run["id"]) for run in runs]
    for one in done:
        assert one["status"] == "completed", one
        assert one["result"] == {**whole["result"], "chance": one["result"]["chance"]}
        assert one["result"]["paid"] == "known"
        assert one["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        check_whole(await events(there.ann, one["id"]), one)
    assert {one["lives"] for one in done} == {2}
    assert await counted(there) == 1 + len(runs)
    await victim.close()


async def test_children_are_handed_over_with_their_parent(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Worker(engine, model, redis_url)
    whole = await ended(there.ann, (await begin(there.ann, PARENT, args={"source": CHILD}))["id"])
    Parter(victim, monkeypatch, itertools.count(1))
    runs = [await begin(victim.ann, PARENT, args={"source": CHILD}) for _ in range(20)]
    done = [await ended(there.ann, run["id"]) for run in runs]
    assert [one["result"] for one in done] == [whole["result"]] * len(runs)
    assert {one["lives"] for one in done} == {2}
    assert await counted(there) == 2 + 2 * len(runs)
    await victim.close()


async def test_a_stop_hands_over_what_waits_and_readers_miss_nothing(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    with running_server(engine, model, redis_url=redis_url, api_keys=("ann",), drain_s=600) as server:
        headers = {"Authorization": "Bearer ann"}
        async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=headers) as client:
            run = await begin(client, RECEIVES)
            following = asyncio.create_task(events(there.ann, run["id"]))
            await client.post(f"{RUNS}/{run['id']}/input", json={"input": 1})
            await until(lambda: has_said(there, run["id"]))
            server.begin_drain()
            await asyncio.to_thread(server.join)
    left = await get(there.ann, f"/{run['id']}")
    assert (left["status"], left["resumable"]) == ("in_progress", True)
    await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 2})
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"], done["lives"]) == ("completed", [1, 2], 2)
    assert kinds(await following) == ["started", "text.delta", "completed"]


async def test_an_effect_under_way_is_waited_for_and_no_other_begins(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Worker(engine, model, redis_url)
    begun, may_end = asyncio.Event(), asyncio.Event()
    calls: list[str] = []
    _slow_add(victim, monkeypatch, begun, may_end, calls)
    run = await begin(victim.ann, "return [await lm.store.add('paid'), await lm.store.add('paid')]")
    await begun.wait()
    runs = victim.services.detached_runs
    runs.begin_drain()
    there.services.detached_runs.watch()
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert runs.num_running == 1
    may_end.set()
    done = await ended(there.ann, run["id"])
    assert (done["result"], done["lives"], calls) == ([1, 2], 2, ["paid"])
    await victim.close()


async def test_an_effect_that_outlasts_the_drain_is_unknown_and_not_tried_again(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Worker(engine, model, redis_url)
    begun = asyncio.Event()
    calls: list[str] = []
    _slow_add(victim, monkeypatch, begun, asyncio.Event(), calls)
    run = await begin(victim.ann, ADDS)
    await begun.wait()
    victim.services.detached_runs.begin_drain()
    await victim.services.detached_runs.hand_over()
    there.services.detached_runs.watch()
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["content"], done["lives"]) == ("completed", "tool_outcome_unknown", 2)
    assert await counted(there) == 0
    assert calls == ["paid"]
    await victim.close()


def _slow_add(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, begun: asyncio.Event, may_end: asyncio.Event, calls: list[str]
) -> None:
    doors = worker.services.programs.doors
    assert doors.values is not None
    of = doors.values.of

    def slow(owner: str) -> Any:
        values = of(owner)
        add = values.add

        async def added(key: str, amount: int | float) -> int | float:
            calls.append(key)
            begun.set()
            await may_end.wait()
            return await add(key, amount)

        monkeypatch.setattr(values, "add", added)
        return values

    monkeypatch.setattr(doors.values, "of", slow)


async def test_a_run_that_waits_for_a_message_pulls_it_once_in_its_next_life(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, "await lm.emit('on')\nreturn [await lm.pull('work'), await lm.pull('work')]")
    await until(lambda: has_said(there, run["id"]))
    await ended(there.ann, (await begin(there.ann, "await lm.push('work', 1)"))["id"])
    bells = victim.services.programs.doors.bells
    assert bells is not None
    await until(lambda: bells.num_listening)
    await victim.close()
    there.services.detached_runs.watch()
    await ended(there.ann, (await begin(there.ann, "await lm.push('work', 2)"))["id"])
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"]) == ("completed", [1, 2])


async def test_a_program_whose_request_is_there_is_left_to_it_for_the_whole_drain(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    victim = Worker(engine, model, redis_url)
    source = main_of("await lm.emit('on')\nreturn await lm.receive()")
    body = chat(extension={"source": source, "detached": True})
    asking = asyncio.create_task(victim.ann.post(CHAT, json=body))
    runs = victim.services.detached_runs
    await until(lambda: runs.num_running)
    (run_id,) = runs._makings
    await until(lambda: has_said(there, run_id))
    runs.begin_drain()
    await asyncio.sleep(0.1)
    assert (runs.num_running, asking.done()) == (1, False)
    await runs.hand_over()
    error = problem(await asking, 503)
    assert (error["run_id"], "goes on" in error["message"]) == (run_id, True)
    there.services.detached_runs.watch()
    await there.ann.post(f"{RUNS}/{run_id}/input", json={"input": "more"})
    assert (await ended(there.ann, run_id))["content"] == "onmore"
    await victim.close()


async def test_what_cannot_be_handed_over_ends_and_says_why(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    for most, fills, reason in ((0, "", NO_JOURNAL), (3000, "for n in range(200):\n    lm.random()\n", FULL)):
        victim = Worker(engine, model, redis_url, max_run_journal_bytes=most)
        run = await begin(victim.ann, f"{fills}await lm.emit('on')\nawait lm.receive()")
        await until(lambda: has_said(there, run["id"]))  # noqa: B023 - it is over before the next
        await victim.close()
        failed = await get(there.ann, f"/{run['id']}")
        assert (failed["status"], failed["error"]["code"]) == ("failed", "run_interrupted")
        assert reason in failed["error"]["message"]


async def test_a_run_is_handed_over_as_often_as_one_likes_and_crashes_count_as_before(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = ""
    monkeypatch.setattr(there.services.detached_runs, "watch", lambda: None)
    for number in range(making.MAX_LIVES + 2):
        victim = Worker(engine, model, redis_url)
        if not run_id:
            run_id = (await begin(victim.ann, "await lm.emit('on')\nreturn await lm.receive()"))["id"]
            await until(lambda: has_said(there, run_id))  # noqa: B023 - it is over before the next
        victim.services.detached_runs.watch()
        await until(lambda: victim.services.detached_runs.num_running)  # noqa: B023 - it is over before the next
        assert (await get(there.ann, f"/{run_id}"))["lives"] == 1 + number
        await victim.close()
    store = there.services.detached_runs.store
    lives = [await _crash_of(store, run_id, number) for number in range(making.MAX_LIVES + 2)]
    assert lives == [5, 6, 7, 8, 0]


async def _crash_of(store: run_store.RunStore, run_id: str, number: int) -> int:
    """Goes on with a run whose worker has just died; returns how many lives that made."""
    await store._redis.zadd(f"{PREFIX}plx", {run_id: 0})
    return await store.go_on(run_id, f"token {number}", making.MAX_LIVES, is_own=False)


async def test_a_run_that_was_left_can_be_cancelled_and_nobody_goes_on_with_it(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(there.services.detached_runs, "watch", lambda: None)
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, RECEIVES)
    await until(lambda: has_said(there, run["id"]))
    await victim.close()
    cancelling = asyncio.create_task(there.ann.post(f"{RUNS}/{run['id']}/cancel"))
    await until(lambda: _is_unwanted(there, run["id"]))
    there.services.detached_runs._watch.start()
    cancelled = (await cancelling).json()
    assert (cancelled["status"], cancelled["error"], cancelled["lives"]) == ("cancelled", None, 1)
    assert kinds(await events(there.ann, run["id"])) == ["started", "text.delta", "cancelled"]


async def _is_unwanted(worker: Worker, run_id: str) -> bool:
    record = await worker.services.detached_runs.store.find(run_id)
    return record is not None and record.is_unwanted


async def test_time_in_which_nobody_was_there_does_not_count_after_a_stop(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(there.services.detached_runs, "watch", lambda: None)
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, RECEIVES, limits={"wall_s": 60})
    await until(lambda: has_said(there, run["id"]))
    await victim.close()
    store = there.services.detached_runs.store
    hour_ms = 3600 * 1000
    for field in ("created", "left"):
        await store._redis.hincrby(run_store.run_key(run["id"]), field, -hour_ms)
    there.services.detached_runs._watch.start()
    for number in (1, 2):
        await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": number})
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"]) == ("completed", [1, 2])
    assert done["usage"]["wall_s"] < 60


async def test_a_run_whose_store_is_away_at_the_stop_goes_on_as_after_a_crash(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "GRACE_S", 0.0)
    monkeypatch.setattr("gateway.runs.telling.HANDING_S", 0.2)
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, RECEIVES)
    await until(lambda: has_said(there, run["id"]))

    async def away(*_: object) -> bool:
        raise StoreUnavailable("away")

    monkeypatch.setattr(victim.services.detached_runs.store, "hand_over", away)
    await victim.close()
    lapse(redis_url, run["id"])
    there.services.detached_runs.watch()
    for number in (1, 2):
        await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": number})
    assert (await ended(there.ann, run["id"]))["result"] == [1, 2]


async def test_a_tenant_pays_once_for_a_run_that_is_handed_over(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    workers = [Worker(engine, model, redis_url, admin_key=ADMIN_KEY) for _ in range(2)]
    tenancies = [worker.services.tenants for worker in workers]
    assert tenancies[0] is not None
    tenant = await tenancies[0].directory.create_tenant(BY, "acme", None)
    _, key = await tenancies[0].directory.create_key(BY, tenant.id, "k")
    body = {"source": main_of("ctx = await lm.context('Hi')\nawait ctx.generate(max_tokens=8)\n" + RECEIVES)}
    headers = bearer(key.value)
    run: Body = (await workers[0].ann.post(RUNS, json=body, headers=headers)).json()

    async def is_on() -> bool:
        found = (await workers[1].ann.get(f"{RUNS}/{run['id']}", headers=headers)).json()
        return bool(found["last_sequence_number"] >= 1)

    await until(is_on)
    await workers[0].close()
    workers[1].services.detached_runs.watch()
    for number in (1, 2):
        sent = await workers[1].ann.post(f"{RUNS}/{run['id']}/input", json={"input": number}, headers=headers)
        assert sent.status_code == 200

    async def is_over() -> Body | None:
        found: Body = (await workers[1].ann.get(f"{RUNS}/{run['id']}", headers=headers)).json()
        return found if found["status"] != "in_progress" else None

    await until(is_over)
    done = await is_over()
    assert done is not None
    assert (done["status"], done["result"], done["lives"]) == ("completed", [1, 2], 2)
    await tenancies[1].gate.settled()  # type: ignore[union-attr]
    path = f"/v1/organization/usage/completions?start_time={int(time.time()) - 60}&group_by=model"
    page = (await workers[1].ann.get(path, headers=bearer(ADMIN_KEY))).json()
    (result,) = [one for bucket in page["data"] for one in bucket["results"]]
    assert result["output_tokens"] == done["usage"]["completion_tokens"] == 8
    assert result["input_tokens"] == done["usage"]["prompt_tokens"]
    assert result["num_model_requests"] == 1
    await workers[1].close()
