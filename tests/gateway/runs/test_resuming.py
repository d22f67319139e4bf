"""Runs whose script's process, gateway process or engine dies go on: once more from the start, and nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
import psutil
import pytest

from engine.errors import EngineStopped
from engine.text.model import TextModel
from extensions.journal.entries import Entry
from gateway.errors import StoreUnavailable
from gateway.runs import making, service, watching
from gateway.runs.journal import FULL, RunJournal
from gateway.runs.reviving import Reviver
from gateway.state import run_store
from gateway.state.run_store import NO_PART, Part, Told
from tests.fakes import ScriptedEngine, says
from tests.gateway.runs.workers import RUNS, Worker, begin, ended, events, get, kinds, lapse, main_of, until
from tests.gateway.wire import Body
from tests.processes import words_of

AGENT = """
print("begun")
ctx = await lm.context("Hi")
said = await ctx.generate(max_tokens=24, emit=True, temperature=1.0)
await lm.emit_event("said", said.text)
try:
    await lm.store.add("paid")
    paid = "known"
except RuntimeError as error:
    paid = str(error).split(":")[0]
forks = await ctx.fork(2)
more = await asyncio.gather(*[fork.generate(max_tokens=6, emit=True) for fork in forks])
await lm.sleep(0.01)
await lm.emit(" end")
print("at", ctx.length)
return {"said": said.text, "more": [one.text for one in more], "paid": paid, "chance": lm.random()}
"""
CHILD = main_of("""
ctx = await lm.context("Hi")
said = await ctx.generate(max_tokens=6)
try:
    await lm.store.add("paid")
    paid = "known"
except RuntimeError as error:
    paid = str(error).split(":")[0]
await lm.sleep(0.001)
return f"{said.text}|{paid}"
""")
PARENT = """
both = await asyncio.gather(*[lm.run_source(request.args["source"]) for _ in range(2)])
await lm.emit_event("children", len(both))
return [one.text for one in both]
"""
WORDS = "This is what it says, and it says it in the same words always."
WAITS = """
first = await lm.receive()
await lm.emit(f"{first} ")
second = await lm.receive()
return [first, second, request.args]
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose worker is gone are gone on with soon; none is taken for gone because the machine is busy."""
    monkeypatch.setattr(run_store, "LEASE_MS", 3_600_000)
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    monkeypatch.setattr(watching, "LOOK_S", 0.05)
    monkeypatch.setattr(watching, "GRACE_S", 0.0)
    monkeypatch.setattr(making, "BACKOFF_S", (0.01,))


@pytest.fixture
def engine(model: TextModel) -> ScriptedEngine:
    """Says the same a few tokens at a time."""
    return ScriptedEngine(model, says(model, WORDS, per_event=4))


class Torn(RunJournal):
    """A journal whose process dies once so many entries are written: these are there, and nothing after them."""

    def __init__(self, run_id: str, most: int, die: Callable[[Torn], Awaitable[None]]) -> None:
        super().__init__(run_id, 10**9)
        self.left = most
        self._die = die
        self._dying: asyncio.Future[None] | None = None

    def put(self, entry: Entry) -> None:
        if self.left > 0:
            self.left -= 1
            super().put(entry)
        if self.left == 0:
            self.left = -1
            self._loop.call_soon_threadsafe(self._begin_to_die)

    def _begin_to_die(self) -> None:
        self._dying = asyncio.ensure_future(self._die(self))

    async def commit(self) -> None:
        if self.left < 0:
            await self._loop.create_future()
        await super().commit()


class Mortal:
    """A worker that dies for each of its runs after another entry of its journal."""

    def __init__(self, worker: Worker, monkeypatch: pytest.MonkeyPatch, most: Iterator[int]) -> None:
        self.worker = worker
        self._runs = worker.services.detached_runs
        self._dead: set[str] = set()
        self._sending: set[str] = set()
        self._beating = asyncio.Lock()
        store = self._runs.store
        self._append, self._settle, self._beat = store.append, store.settle, store.beat
        monkeypatch.setattr(self._runs, "sink", lambda run_id: Torn(run_id, next(most), self._die))
        monkeypatch.setattr(store, "append", self._append_alive)
        monkeypatch.setattr(store, "settle", self._settle_alive)
        monkeypatch.setattr(store, "beat", self._beat_alive)
        monkeypatch.setattr(self._runs, "watch", lambda: None)

    async def _append_alive(self, run_id: str, token: str, told: Told, part: Part = NO_PART) -> bool:
        if run_id in self._dead:
            raise StoreUnavailable("nobody hears the dead")
        self._sending.add(run_id)
        try:
            return await self._append(run_id, token, told, part)
        finally:
            self._sending.discard(run_id)

    async def _settle_alive(self, run_id: str, *fields: Any) -> bool:
        return run_id not in self._dead and await self._settle(run_id, *fields)

    async def _beat_alive(self, runs: Sequence[tuple[str, str]]) -> list[int]:
        alive = [one for one in runs if one[0] not in self._dead]
        async with self._beating:
            told = dict(zip(alive, await self._beat(alive), strict=True))
        return [told.get(one, 1) for one in runs]

    async def _die(self, journal: Torn) -> None:
        self._dead.add(journal.name)
        await until(lambda: journal.name in self._runs._makings)
        making = self._runs._makings[journal.name]
        await asyncio.sleep(0.01)
        await until(lambda: journal.name not in self._sending)
        await asyncio.sleep(0.01)
        while journal.has_news:
            await self._append(journal.name, making.token, Told(events=(), last=-1), journal.take())
            journal.note_stored()
        await making.end("lost")
        async with self._beating:  # no sign of life is under way
            lapse(self.worker._redis_url, journal.name)


def check_whole(told: list[Body], done: Body) -> None:
    """Each number once, and together what the run says that it came to."""
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert Counter(kinds(told))["started"] == 1
    assert "".join(one.get("log", "") for one in told) == done["logs"]
    assert [one["event"]["type"] for one in told if "event" in one] == ["said"]
    text = "".join(one.get("delta", "") for one in told)
    assert text.startswith(done["result"]["said"])
    assert text.endswith(" end")
    assert Counter(text) == Counter(done["content"])


@pytest.mark.parametrize("start", range(2))
async def test_a_run_whose_worker_dies_anywhere_comes_to_the_same_through_another(
    engine: ScriptedEngine,
    model: TextModel,
    redis_url: str,
    there: Worker,
    monkeypatch: pytest.MonkeyPatch,
    start: int,
) -> None:
    victim = Worker(engine, model, redis_url)
    whole = await ended(there.ann, (await begin(there.ann, AGENT))["id"])
    Mortal(victim, monkeypatch, itertools.count(1 + start, 2))
    runs = [await begin(victim.ann, AGENT) for _ in range(15)]
    done = [await ended(there.ann, run["id"]) for run in runs]
    for one in done:
        assert one["status"] == "completed", one
        assert one["result"]["said"] == whole["result"]["said"] == WORDS[: len(one["result"]["said"])]
        assert one["result"]["more"] == whole["result"]["more"]
        assert one["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        check_whole(await events(there.ann, one["id"]), one)
    assert {one["lives"] for one in done} == {2}
    paid = Counter(one["result"]["paid"] for one in done)
    assert paid.keys() <= {"known", "tool_outcome_unknown"}
    counted = await ended(there.ann, (await begin(there.ann, "return await lm.store.get('paid')"))["id"])
    assert 1 + paid["known"] <= counted["result"] <= 1 + len(runs)
    await victim.close()


async def test_children_go_on_with_their_parent(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Worker(engine, model, redis_url)
    whole = await ended(there.ann, (await begin(there.ann, PARENT, args={"source": CHILD}))["id"])
    assert (whole["status"], len(whole["result"])) == ("completed", 2)
    Mortal(victim, monkeypatch, itertools.count(1))
    runs = [await begin(victim.ann, PARENT, args={"source": CHILD}) for _ in range(21)]
    done = [await ended(there.ann, run["id"]) for run in runs]
    for one in done:
        assert (one["status"], one["lives"], one["error"]) == ("completed", 2, None)
        assert [text.partition("|")[0] for text in one["result"]] == [
            text.partition("|")[0] for text in whole["result"]
        ]
        assert one["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert one["usage"]["children"] == 2
        told = await events(there.ann, one["id"])
        assert [event["event"]["data"] for event in told if "event" in event] == [2]
    known = sum(text.endswith("|known") for one in done for text in one["result"])
    counted = await ended(there.ann, (await begin(there.ann, "return await lm.store.get('paid')"))["id"])
    assert 2 + known <= counted["result"] <= 2 + 2 * len(runs)
    await victim.close()


async def test_what_a_client_said_is_heard_once(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, WAITS, args={"n": 1})
    await victim.ann.post(f"{RUNS}/{run['id']}/input", json={"input": "one"})
    await until(lambda: _has_said(there, run["id"]))
    await victim.vanish()
    there.services.detached_runs.watch()
    await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": "two"})
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"]) == ("completed", ["one", "two", {"n": 1}])
    assert "".join(one.get("delta", "") for one in await events(there.ann, run["id"])) == "one "


async def _has_said(worker: Worker, run_id: str) -> bool:
    return bool((await get(worker.ann, f"/{run_id}"))["last_sequence_number"] >= 1)


async def test_a_run_whose_scripts_process_dies_goes_on_in_another(here: Worker) -> None:
    before = _scripts()
    run = await begin(
        here.ann, "a = lm.random()\nawait lm.emit('on')\nb = await lm.receive()\nreturn [a == lm.random(), b]"
    )
    await until(lambda: _has_said(here, run["id"]))
    for pid in _scripts() - before:
        os.kill(pid, signal.SIGKILL)
    # It is found out once the script is to be told something.
    await here.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 7})
    done = await ended(here.ann, run["id"])
    assert (done["status"], done["result"], done["content"]) == ("completed", [False, 7], "on")
    assert done["lives"] == 2
    assert kinds(await events(here.ann, run["id"])) == ["started", "text.delta", "completed"]


def _scripts() -> set[int]:
    return {child.pid for child in psutil.Process().children() if "monty" in " ".join(words_of(child))}


async def test_a_run_whose_engine_dies_goes_on_with_what_it_had_said(here: Worker, engine: ScriptedEngine) -> None:
    plain = engine.script
    engine.script = lambda request, index: [*plain(request, index)[:2], EngineStopped("the engine process ended")]
    run = await begin(here.ann, AGENT, stream=False)
    await until(lambda: engine.requests)
    engine.script = plain
    done = await ended(here.ann, run["id"])
    assert (done["status"], done["lives"], done["result"]["said"]) == (
        "completed",
        2,
        WORDS[: len(done["result"]["said"])],
    )
    assert [request.num_given for request in engine.requests[:2]] == [0, 8]
    check_whole(await events(here.ann, run["id"]), done)
    # What had been computed before was computed again, and is counted as that.
    assert done["usage"]["prompt_tokens"] == 2 + (2 + 8)


async def test_a_run_whose_journal_is_full_says_so_and_fails_with_its_worker(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    victim = Worker(engine, model, redis_url, max_run_journal_bytes=3000)
    run = await begin(victim.ann, "for n in range(200):\n    lm.random()\nawait lm.emit('on')\nawait lm.receive()")
    assert run["resumable"]
    await until(lambda: _has_said(there, run["id"]))
    told = await get(there.ann, f"/{run['id']}")
    assert (told["resumable"], told["not_resumable_reason"]) == (False, FULL)
    await victim.vanish()
    there.services.detached_runs.watch()
    assert (await ended(there.ann, run["id"]))["error"]["code"] == "run_interrupted"


async def test_a_run_that_kills_whoever_runs_it_is_given_up(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_LIVES", 1)
    run_id = ""
    for _ in range(2):
        victim = Worker(engine, model, redis_url)
        if not run_id:
            run_id = (await begin(victim.ann, "await lm.emit('on')\nawait lm.receive()"))["id"]
        victim.services.detached_runs.watch()
        await _killed_once_it_runs(victim)
    there.services.detached_runs.watch()
    failed = await ended(there.ann, run_id)
    assert (failed["error"]["code"], failed["lives"]) == ("run_interrupted", 2)


async def _killed_once_it_runs(victim: Worker) -> None:
    await until(lambda: victim.services.detached_runs.num_running)
    await victim.vanish()


async def test_a_run_whose_model_is_not_served_here_is_left_to_those_that_serve_it(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = Worker(engine, model, redis_url)
    run = await begin(victim.ann, "await lm.emit('on')\nreturn await lm.receive()")
    await victim.vanish()
    stranger = ScriptedEngine(model, engine.script)
    stranger._info = msgspec.structs.replace(stranger.info, fingerprint="another")
    other = Worker(stranger, model, redis_url)
    looks: list[str] = []
    reviver = other.services.detached_runs._reviver
    assert reviver is not None
    is_foreign = reviver.is_foreign

    async def looked(run_id: str) -> bool:
        looks.append(run_id)
        return await is_foreign(run_id)

    monkeypatch.setattr(reviver, "is_foreign", looked)
    other.services.detached_runs.watch()
    await until(lambda: len(looks) > 2)
    assert (await get(other.ann, f"/{run['id']}"))["lives"] == 1
    there.services.detached_runs.watch()
    await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 3})
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"], done["lives"]) == ("completed", 3, 2)
    await other.close()


async def test_a_worker_that_ends_does_not_wait_for_an_engine_to_come_back(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    worker = Worker(engine, model, redis_url)
    run = await begin(worker.ann, "ctx = await lm.context('Hi')\nawait lm.receive()\nawait ctx.generate()\nreturn 1")
    info, engine._info = engine.info, None
    await worker.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 1})
    await until(lambda: _has_lives(there, run["id"], 2))
    await worker.close()
    assert (await get(there.ann, f"/{run['id']}"))["status"] == "in_progress"
    engine._info = info
    there.services.detached_runs.watch()
    done = await ended(there.ann, run["id"])
    assert (done["status"], done["result"], done["lives"]) == ("completed", 1, 3)


async def test_nor_where_a_cancellation_gets_lost(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Redis's client can lose one while it sends."""

    waits = asyncio.Event()

    async def wait(self: Reviver) -> None:
        waits.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    worker = Worker(engine, model, redis_url)
    run = await begin(worker.ann, "ctx = await lm.context('Hi')\nawait lm.receive()\nawait ctx.generate()\nreturn 1")
    info, engine._info = engine.info, None
    with monkeypatch.context() as patch:
        patch.setattr(Reviver, "_wait_for_engine", wait)
        await worker.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 1})
        await waits.wait()
        await worker.close()
    engine._info = info
    there.services.detached_runs.watch()
    assert (await ended(there.ann, run["id"]))["result"] == 1


async def _has_lives(worker: Worker, run_id: str, number: int) -> bool:
    return bool((await get(worker.ann, f"/{run_id}"))["lives"] == number)


async def test_nothing_of_a_journal_is_left_behind_a_run(here: Worker) -> None:
    run = await ended(here.ann, (await begin(here.ann, AGENT))["id"])
    store = here.services.detached_runs.store
    assert await store.journal(run["id"]) == (b"", [])
    assert await store.marks(run["id"]) == {}
    assert not run["resumable"]
