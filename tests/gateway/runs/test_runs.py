"""Detached runs: worked on by one worker, served by any, and told the truth about whatever becomes of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.errors import EngineStopped
from engine.text.model import TextModel
from gateway.runs import making, outbox, service, watching
from gateway.runs.following import follow
from gateway.state import run_store
from gateway.state.embedded import EmbeddedRedis, find_server
from tests.fakes import ScriptedEngine, running_server
from tests.gateway.runs.workers import (
    RUNS,
    Worker,
    begin,
    ended,
    events,
    get,
    kinds,
    lapse,
    main_of,
    parsed,
    problem,
    until,
)
from tests.gateway.test_answered import check_answer
from tests.gateway.wire import CHAT, Body, chat

TELLS = """
print("begun")
await lm.emit("one ")
await lm.emit_event("place", {"at": [1, None]})
await lm.emit("two")
return {"answer": request.args, "prompt": request.prompt, "params": request.params}
"""
ASKS = """
await lm.emit("ready")
said = []
while len(said) < request.args.get("n", 2):
    said.append(await lm.receive())
    await lm.emit_event("heard", said[-1])
return said
"""
SLEEPS = 'await lm.emit("begun")\nawait lm.sleep(100)'


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without a worker are given up soon; none is taken for one because the machine is busy."""
    monkeypatch.setattr(run_store, "LEASE_MS", 3_600_000)
    monkeypatch.setattr(service, "BEAT_S", 0.05)
    monkeypatch.setattr(watching, "LOOK_S", 0.05)
    monkeypatch.setattr(watching, "GRACE_S", 0.0)


async def test_a_run_answers_at_once_and_is_done_later_for_every_worker(here: Worker, there: Worker) -> None:
    fields: Body = {"args": {"a": 1}, "prompt": [1, 2], "params": {"temperature": 0}, "metadata": {"k": "v"}}
    run = await begin(here.ann, TELLS, **fields)
    assert run["status"] in ("in_progress", "completed")
    check_answer(here.described, "POST /v1/runs", run)
    done = await ended(there.ann, run["id"])
    check_answer(here.described, "GET /v1/runs/{run_id}", done)
    assert (done["status"], done["metadata"], done["args"]) == ("completed", {"k": "v"}, {"a": 1})
    assert (done["content"], done["logs"]) == ("one two", "begun\n")
    assert done["result"] == {"answer": {"a": 1}, "prompt": [1, 2], "params": {"temperature": 0}}
    assert done["usage"]["host_calls"] > 2
    assert done["error"] is None
    assert done["program"]["digest"].startswith("sha256:")
    told = await events(there.ann, run["id"])
    assert kinds(told)[0] == "started"
    assert kinds(told)[-1] == "completed"
    assert told[-1]["run"] == done
    assert "".join(one.get("delta", "") for one in told) == "one two"
    assert [one["event"] for one in told if "event" in one] == [{"type": "place", "data": {"at": [1, None]}}]
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    assert done["last_sequence_number"] == len(told) - 1


async def test_events_come_while_it_runs_through_any_worker(here: Worker, there: Worker) -> None:
    run = await begin(here.ann, ASKS)
    following = [asyncio.create_task(events(worker.ann, run["id"])) for worker in (here, there)]
    for word in ("a", {"b": [1]}):
        await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": word})
    first, second = await asyncio.gather(*following)
    assert first == second
    assert kinds(first) == ["started", "text.delta", "event", "event", "completed"]
    assert first[-1]["run"]["result"] == ["a", {"b": [1]}]


@pytest.mark.parametrize("by_header", [False, True])
async def test_a_reader_that_was_cut_off_goes_on_where_it_was(here: Worker, there: Worker, by_header: bool) -> None:
    run = await begin(here.ann, TELLS)
    done = await ended(here.ann, run["id"])
    whole = await events(there.ann, run["id"])
    for number in range(-1, done["last_sequence_number"] + 3):
        place: Any = {"headers": {"Last-Event-ID": str(number)}} if by_header else {"after": number}
        assert await events(there.ann, run["id"], **place) == whole[number + 1 :]


async def test_a_run_can_be_read_by_the_request_that_starts_it(here: Worker) -> None:
    answer = await here.ann.post(RUNS, json={"source": main_of(TELLS), "stream": True})
    told = parsed(answer.text)
    assert kinds(told)[-1] == "completed"
    assert await events(here.ann, told[-1]["run"]["id"]) == told


@pytest.mark.parametrize("other", [False, True])
async def test_it_is_cancelled_by_any_worker(
    workers: tuple[Worker, Worker], engine: ScriptedEngine, other: bool
) -> None:
    run = await begin(workers[0].ann, "ctx = await lm.context('Hi')\nawait ctx.prefill()\nawait lm.sleep(100)")
    await until(lambda: engine.contexts.histories)
    following = asyncio.create_task(events(workers[1].ann, run["id"]))
    path = f"{RUNS}/{run['id']}/cancel"
    cancelled = (await workers[other].ann.post(path)).json()
    assert (cancelled["id"], cancelled["status"], cancelled["error"]) == (run["id"], "cancelled", None)
    assert cancelled["usage"]["contexts"] == 1
    assert engine.contexts.histories == {}
    assert kinds(await following) == ["started", "cancelled"]
    assert (await workers[not other].ann.post(path)).json() == cancelled
    await until(lambda: not workers[0].services.detached_runs.num_running)
    assert workers[0].services.lifecycle.num_active == 0


@pytest.mark.parametrize("other", [False, True])
async def test_deleting_it_ends_it(workers: tuple[Worker, Worker], other: bool) -> None:
    run = await begin(workers[0].ann, SLEEPS)
    record = await workers[1].services.detached_runs.store.find(run["id"])
    assert record is not None
    following = follow(workers[1].services, run["id"], record.owner, -1)
    assert b"run.started" in await anext(following)
    answer = await workers[other].ann.delete(f"{RUNS}/{run['id']}")
    check_answer(workers[0].described, "DELETE /v1/runs/{run_id}", answer.json())
    await until(lambda: not workers[0].services.detached_runs.num_running)
    problem(await workers[0].ann.get(f"{RUNS}/{run['id']}"), 404)
    assert b"not_found" in [data async for data in following][-1]


async def test_input_that_came_before_it_was_asked_for_is_kept_in_order(here: Worker, there: Worker) -> None:
    run = await begin(here.ann, "await lm.receive()\nreturn [await lm.receive(timeout_s=60) for _ in range(20)]")
    for number in range(21):
        answer = await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": number})
        assert answer.json() == {"object": "run.input", "run_id": run["id"], "number": number + 1}
    assert (await ended(there.ann, run["id"]))["result"] == list(range(1, 21))


async def test_input_is_waited_for_so_long(here: Worker) -> None:
    run = await begin(
        here.ann,
        """
        told = []
        for timeout_s in (0, 0.05):
            try:
                await lm.receive(timeout_s)
            except TimeoutError as error:
                told.append(str(error))
        return told
        """,
    )
    told = (await ended(here.ann, run["id"]))["result"]
    assert told == ["receive_timeout: no input came in 0 s", "receive_timeout: no input came in 0.05 s"]


async def test_a_run_that_has_ended_takes_no_input(here: Worker) -> None:
    run = await ended(here.ann, (await begin(here.ann, "return 1"))["id"])
    error = problem(await here.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 1}), 400)
    assert (error["code"], error["param"]) == ("run_ended", "run_id")


@pytest.mark.parametrize("body", [{}, {"input": None}, []])
async def test_input_must_be_there(here: Worker, body: Any) -> None:
    run = await begin(here.ann, SLEEPS)
    assert (await here.ann.post(f"{RUNS}/{run['id']}/input", json=body)).status_code == 400


async def test_nobody_else_sees_or_reaches_a_run(here: Worker, there: Worker) -> None:
    run = await begin(here.ann, SLEEPS)
    path = f"{RUNS}/{run['id']}"
    for worker in (here, there):
        for method, where, body in (
            ("GET", path, None),
            ("GET", f"{path}/events", None),
            ("POST", f"{path}/input", {"input": 1}),
            ("POST", f"{path}/cancel", None),
            ("DELETE", path, None),
        ):
            answer = await worker.bob.request(method, where, json=body)
            error = problem(answer, 404)
            assert error["message"] == f"Run with id '{run['id']}' not found."
        assert (await get(worker.bob, ""))["data"] == []
        problem(await worker.bob.get(RUNS, params={"after": run["id"]}), 400)
    assert (await get(there.ann, f"/{run['id']}"))["status"] == "in_progress"


async def test_runs_are_listed_from_the_newest_in_pages(here: Worker, there: Worker) -> None:
    made = []
    for number in range(5):
        made.append((await begin(here.ann, "return 1", args={"n": number}))["id"])
        await asyncio.sleep(0.002)
    page = await get(there.ann, "", limit=3)
    check_answer(here.described, "GET /v1/runs", page)
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (made[:1:-1], True)
    rest = await get(there.ann, "", limit=3, after=page["last_id"])
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (made[1::-1], False)
    problem(await there.ann.get(RUNS, params={"after": "run_none"}), 400)


UNFIT: tuple[tuple[Body, str], ...] = (
    ({}, "source"),
    ({"source": "async def main(request, lm): pass", "name": "x"}, "name"),
    ({"source": "async def main(request, lm): return lm.nothing"}, "source"),
    ({"name": "Bad Name"}, "name"),
    ({"source": main_of("return 1"), "limits": {"wall_s": 10**9}}, "limits.wall_s"),
    ({"source": main_of("return 1"), "limits": {"x": 1}}, "limits.x"),
    ({"source": main_of("return 1"), "messages": "hi"}, "messages"),
    ({"source": main_of("return 1"), "prompt": [-1]}, "prompt[0]"),
    ({"source": main_of("return 1"), "metadata": {"a": 1}}, "metadata.a"),
    ({"source": main_of("return 1"), "arg": {"a": 1}}, "arg"),
    ({"source": main_of("return 1"), "limit": None}, "limit"),
)


async def test_what_cannot_run_is_refused_before_anything_is_kept(here: Worker) -> None:
    for body, param in UNFIT:
        error = problem(await here.ann.post(RUNS, json=body), 400)
        assert error["param"] == param, body
    assert (await get(here.ann, ""))["data"] == []


async def test_an_unknown_program_is_not_found(here: Worker) -> None:
    error = problem(await here.ann.post(RUNS, json={"name": "no_such"}), 404)
    assert (error["code"], error["param"]) == ("extension_not_found", "name")


async def test_a_failure_is_written_down_with_what_was_used(here: Worker, there: Worker) -> None:
    run = await begin(here.ann, "print('so far')\nawait lm.emit('x')\nreturn 1 / 0")
    failed = await ended(there.ann, run["id"])
    assert (failed["status"], failed["error"]["code"], failed["error"]["line"]) == ("failed", "extension_error", 5)
    assert (failed["logs"], failed["usage"]["output_bytes"]) == ("so far\n", 1)
    told = await events(there.ann, run["id"])
    assert kinds(told)[-1] == "failed"
    assert told[-1]["run"] == failed


async def test_a_limit_ends_it(here: Worker) -> None:
    run = await begin(here.ann, "await lm.sleep(0.15)\nawait lm.sleep(0.15)", limits={"wall_s": 0.2})
    failed = await ended(here.ann, run["id"])
    assert (failed["error"]["code"], failed["error"]["limit"]) == ("limit_exceeded", "wall_s")


async def test_an_engine_that_stops_again_and_again_fails_it(
    here: Worker, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "BACKOFF_S", (0.01,))
    engine.script = lambda request, index: [[40], EngineStopped("the engine process ended")]
    run = await begin(here.ann, "ctx = await lm.context('Hi')\nreturn (await ctx.generate()).text")
    failed = await ended(here.ann, run["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "engine_stopped")
    assert failed["lives"] == 1 + making.MAX_LIVES


@pytest.mark.usefixtures("hasty")
async def test_a_run_whose_worker_is_gone_has_failed_and_says_why(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker
) -> None:
    victim = Worker(engine, model, redis_url, max_run_journal_bytes=0)
    run = await begin(victim.ann, SLEEPS)
    assert (run["resumable"], run["lives"]) == (False, 1)
    await until(lambda: _last(there, run["id"], 1))
    before = await events_so_far(there, run["id"])
    following = asyncio.create_task(events(there.ann, run["id"], after=0))
    await victim.vanish()
    failed = await ended(there.ann, run["id"])
    assert (failed["status"], failed["error"]["code"]) == ("failed", "run_interrupted")
    assert "ended before it was done" in failed["error"]["message"]
    assert kinds(await following) == ["text.delta", "failed"]
    assert (await events(there.ann, run["id"]))[:2] == before
    problem(await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 1}), 400)
    assert (await there.ann.delete(f"{RUNS}/{run['id']}")).status_code == 200


@pytest.mark.usefixtures("hasty")
async def test_a_worker_that_was_frozen_and_given_up_writes_nothing_more(
    engine: ScriptedEngine, model: TextModel, redis_url: str, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Worker(engine, model, redis_url, max_run_journal_bytes=0)
    run = await begin(here.ann, SLEEPS)
    await until(lambda: _last(there, run["id"], 1))
    frozen = here.services.detached_runs
    is_silent = asyncio.Event()

    async def unheard(runs: Sequence[tuple[str, str]]) -> list[int]:
        is_silent.set()
        return [1] * len(runs)

    monkeypatch.setattr(frozen.store, "beat", unheard)
    await is_silent.wait()  # the last sign of life has been given
    lapse(redis_url, run["id"])
    there.services.detached_runs.watch()
    failed = await ended(there.ann, run["id"])
    assert failed["error"]["code"] == "run_interrupted"
    monkeypatch.undo()
    await until(lambda: not frozen.num_running)
    assert await get(there.ann, f"/{run['id']}") == failed
    assert kinds(await events(there.ann, run["id"])) == ["started", "text.delta", "failed"]
    await here.close()


async def test_a_drain_waits_for_one_that_nobody_could_go_on_with(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    reader = Worker(engine, model, redis_url, api_keys=())
    with running_server(engine, model, redis_url=redis_url, max_run_journal_bytes=0) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            run = await begin(client, "return await lm.receive()")
            await until(lambda: server.num_active == 1)
            server.begin_drain()
            await until(lambda: server.is_draining)
            await reader.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 7})
            await asyncio.to_thread(server.join)
    assert (await get(reader.ann, f"/{run['id']}"))["result"] == 7
    await reader.close()


async def test_it_outlives_a_restart_of_the_store(engine: ScriptedEngine, model: TextModel, tmp_path: Path) -> None:
    redis = EmbeddedRedis(tmp_path, find_server())
    redis.start()
    worker = Worker(engine, model, redis.url)
    run = await begin(worker.ann, "for n in range(30):\n    await lm.emit(f'{n} ')\n    await lm.sleep(0.05)\nreturn 1")
    await until(lambda: _last(worker, run["id"], 2))
    redis.stop()
    await asyncio.sleep(0.4)
    redis.start()
    done = await ended(worker.ann, run["id"])
    assert (done["status"], done["result"]) == ("completed", 1)
    told = await events(worker.ann, run["id"])
    assert "".join(one.get("delta", "") for one in told) == "".join(f"{n} " for n in range(30))
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    await worker.close()
    redis.stop()


async def test_who_waits_for_input_waits_through_a_restart_of_the_store(
    engine: ScriptedEngine, model: TextModel, tmp_path: Path
) -> None:
    redis = EmbeddedRedis(tmp_path, find_server())
    redis.start()
    worker = Worker(engine, model, redis.url)
    run = await begin(worker.ann, "return [await lm.receive(), await lm.pull('q')]")
    bells = worker.services.programs.doors.bells
    assert bells is not None
    await until(lambda: bells.num_listening)
    redis.stop()
    await asyncio.sleep(0.3)
    redis.start()
    await worker.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 1})
    await ended(worker.ann, (await begin(worker.ann, "await lm.push('q', 2)"))["id"])
    assert (await ended(worker.ann, run["id"]))["result"] == [1, 2]
    await worker.close()
    redis.stop()


async def test_a_reader_that_reads_nothing_or_leaves_holds_up_nothing(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    source = "await lm.receive()\nfor n in range(60):\n    await lm.emit_event('n', 'x' * 60000)\nreturn 1"
    with running_server(engine, model, redis_url=redis_url, send_timeout_s=0.5) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            run = await begin(client, source)
            path = f"{RUNS}/{run['id']}/events"
            async with client.stream("GET", path) as stuck, client.stream("GET", path) as leaving:
                await anext(stuck.aiter_raw())
                await leaving.aclose()
                await client.post(f"{RUNS}/{run['id']}/input", json={"input": 1})
                assert (await ended(client, run["id"]))["result"] == 1
    # By a server that leaves readers their time.
    worker = Worker(engine, model, redis_url, api_keys=())
    told = await events(worker.ann, run["id"])
    assert [one["sequence_number"] for one in told] == list(range(62))
    assert (await get(worker.ann, f"/{run['id']}"))["status"] == "completed"
    await worker.close()


@pytest.mark.parametrize("detached", [False, True])
async def test_arguments_that_are_too_large_to_keep_are_refused(here: Worker, detached: bool) -> None:
    args = {"a": "x" * 2**20}
    if detached:
        body = chat(extension={"source": main_of("return 1"), "args": args, "detached": True})
        error = problem(await here.ann.post(CHAT, json=body), 400)
    else:
        error = problem(await here.ann.post(RUNS, json={"source": main_of("return 1"), "args": args}), 400)
    assert error["param"] == ("extension.args" if detached else "args")


async def test_without_a_store_there_are_no_runs(engine: ScriptedEngine, model: TextModel) -> None:
    worker = Worker(engine, model, "")
    for answer in (
        await worker.ann.post(RUNS, json={"source": main_of("return 1")}),
        await worker.ann.get(RUNS),
        await worker.ann.post(CHAT, json=chat(extension={"source": main_of("return 1"), "detached": True})),
    ):
        assert problem(answer, 503)["code"] == "store_unavailable"
    await worker.close()


async def test_events_that_were_too_many_are_told_as_lost(
    engine: ScriptedEngine, model: TextModel, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_TOLD_BYTES", 500)
    worker = Worker(engine, model, redis_url, max_run_event_bytes=2048)
    run = await begin(worker.ann, "for n in range(50):\n    await lm.emit_event('n', 'x' * 100)")
    done = await ended(worker.ann, run["id"])
    assert done["last_sequence_number"] == 51
    first, *rest = await events(worker.ann, run["id"])
    assert first["type"] == "run.events_dropped"
    assert first["count"] == first["sequence_number"] + 1
    numbers = [one["sequence_number"] for one in rest]
    assert numbers == list(range(first["count"], 52))
    assert 3 < len(rest) < 20
    again = await events(worker.ann, run["id"], after=first["sequence_number"] - 5)
    assert (again[0]["count"], again[1:]) == (5, rest)
    await worker.close()


async def test_so_many_runs_may_go_on_at_once(engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
    worker = Worker(engine, model, redis_url, max_runs=2)
    runs = [await begin(worker.ann, SLEEPS) for _ in range(2)]
    answer = await worker.ann.post(RUNS, json={"source": main_of(SLEEPS)})
    assert "2 runs that have not ended" in problem(answer, 503)["message"]
    await begin(worker.bob, SLEEPS)
    await worker.ann.post(f"{RUNS}/{runs[0]['id']}/cancel")
    third = await begin(worker.ann, SLEEPS)
    assert {one["id"] for one in (await get(worker.ann, ""))["data"]} == {runs[1]["id"], third["id"]}
    await worker.close()


async def test_a_chat_that_is_detached_goes_on_when_its_client_leaves(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    source = main_of("await lm.emit('one ')\nawait lm.sleep(0.5)\nawait lm.emit('two')")
    body = chat(extension={"source": source, "detached": True}, stream=True, metadata={"k": "v"})
    with running_server(engine, model, redis_url=redis_url) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            async with client.stream("POST", CHAT, json=body) as answer:
                await anext(line async for line in answer.aiter_lines() if "one" in line)
                run_id = answer.headers["x-run-id"]
            done = await ended(client, run_id)
            assert (done["status"], done["content"], done["metadata"]) == ("completed", "one two", {"k": "v"})
            assert kinds(await events(client, run_id))[-1] == "completed"


async def test_a_chat_that_is_detached_answers_as_any_other(here: Worker, there: Worker) -> None:
    plain = chat(extension={"source": main_of("print('log')\nawait lm.emit('a')\nreturn {'n': 1}")})
    detached = chat(extension={**plain["extension"], "detached": True})
    told = [(await here.ann.post(CHAT, json=body)) for body in (plain, detached)]
    bodies = [one.json() for one in told]
    for body in bodies:
        body["extension"]["usage"] = body["extension"]["run_id"] = body["id"] = body["created"] = None
    assert bodies[0] == bodies[1]
    assert "x-run-id" not in told[0].headers
    run = await get(there.ann, f"/{told[1].headers['x-run-id']}")
    assert (run["status"], run["result"]) == ("completed", {"n": 1})


async def test_a_detached_program_takes_input_and_fails_as_any_other(here: Worker, there: Worker) -> None:
    source = main_of("await lm.emit_event('id', request.id)\nword = await lm.receive()\nreturn 1 / 0 if word else word")
    asking = asyncio.create_task(here.ann.post(CHAT, json=chat(extension={"source": source, "detached": True})))
    await until(lambda: _listed(there))
    (run,) = (await get(there.ann, ""))["data"]
    await there.ann.post(f"{RUNS}/{run['id']}/input", json={"input": 5})
    failed = await asking
    error = problem(failed, 400)
    assert (error["code"], error["run_id"], failed.headers["x-run-id"]) == ("extension_error", run["id"], run["id"])
    assert (await ended(there.ann, run["id"]))["error"]["code"] == "extension_error"


async def test_a_response_can_be_detached(here: Worker, there: Worker) -> None:
    body = {"input": "hi", "extension": {"source": main_of("return 'yes'"), "detached": True}}
    answer = (await here.ann.post("/v1/responses", json=body)).json()
    assert answer["output"][0]["content"][0]["text"] == "yes"
    run = await get(there.ann, f"/{answer['extension']['run_id']}")
    assert (run["status"], run["content"]) == ("completed", "yes")


async def test_a_response_and_a_stream_that_fail_say_of_which_run(here: Worker) -> None:
    extension = {"source": main_of("return 1 / 0"), "detached": True}
    failed = await here.ann.post("/v1/responses", json={"input": "hi", "extension": extension})
    run_id = problem(failed, 400)["run_id"]
    assert (await get(here.ann, f"/{run_id}"))["status"] == "failed"
    streamed = await here.ann.post(CHAT, json=chat(extension=extension, stream=True))
    assert f'"run_id":"{streamed.headers["x-run-id"]}"' in streamed.text
    plain = await here.ann.post(CHAT, json=chat(extension={"source": extension["source"]}))
    assert "run_id" not in problem(plain, 400)


async def test_a_sampler_cannot_be_detached(here: Worker) -> None:
    sampler = "def sample(logits, key):\n    return gumbel_argmax(logits, key)"
    body = chat(extension={"sampler": sampler, "detached": True})
    assert "detached" in (problem(await here.ann.post(CHAT, json=body), 400)["param"] or "")


async def _listed(worker: Worker) -> bool:
    return bool((await get(worker.ann, ""))["data"])


async def _last(worker: Worker, run_id: str, number: int) -> bool:
    last: int = (await get(worker.ann, f"/{run_id}"))["last_sequence_number"]
    return last >= number


async def events_so_far(worker: Worker, run_id: str) -> list[Body]:
    """What a run that goes on has told."""
    async for found in worker.services.detached_runs.store.events(run_id):
        return [json.loads(one) for one in found]
    raise AssertionError
