"""Programs that keep values, talk to each other and start each other, through whichever worker they run."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, says
from tests.gateway.runs.workers import Worker, begin, ended, events, main_of, problem, until
from tests.gateway.wire import CHAT, Body, chat

HI = [{"role": "user", "content": "hi"}]
ECHO = """EXTENSION = {"name": "echo", "version": "1.0.0",
             "params": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}}

async def main(request, lm):
    print("in", request.args["n"])
    ctx = await lm.context(request.messages)
    answer = await ctx.generate(max_tokens=request.args["n"])
    return {"n": request.args["n"], "said": [one["content"] for one in request.messages], "id": request.id}
"""
NESTS = """EXTENSION = {"name": "nests", "version": "1.0.0", "params": {"type": "object"}}

async def main(request, lm):
    depth = request.args["depth"]
    return depth if depth == 0 else (await lm.run("nests", {"depth": depth - 1})).result
"""
HOLDS = """EXTENSION = {"name": "holds", "version": "1.0.0"}

async def main(request, lm):
    ctx = await lm.context("Hello")
    await ctx.prefill()
    await lm.sleep(100)
"""


async def result(worker: Worker, source: str, **fields: Any) -> Any:
    """What a run of a `main` of these lines returned: text or anything else."""
    run = await ended(worker.ann, (await begin(worker.ann, source, **fields))["id"])
    assert run["status"] == "completed", run["error"]
    return run["content"] if run["result"] is None else run["result"]


async def failure(worker: Worker, source: str, **fields: Any) -> Body:
    """Why such a run failed."""
    run = await ended(worker.ann, (await begin(worker.ann, source, **fields))["id"])
    assert run["status"] == "failed", run
    error: Body = run["error"]
    return error


async def register(worker: Worker, *sources: str) -> None:
    for source in sources:
        answer = await worker.ann.post("/v1/extensions", json={"source": source})
        assert answer.status_code == 200, answer.text


# -- values ---------------------------------------------------------------------------------------------------------


async def test_what_one_run_keeps_another_finds_in_any_worker(here: Worker, there: Worker) -> None:
    await result(here, 'await lm.store.put("a", {"b": [1, None, "é"]})')
    assert await result(
        there, 'return [await lm.store.get("a"), await lm.store.get("b"), await lm.store.get("b", 7)]'
    ) == [
        {"b": [1, None, "é"]},
        None,
        7,
    ]
    assert await result(
        here, 'return [await lm.store.add("n"), await lm.store.add("n", 1.5), await lm.store.delete("n")]'
    ) == [
        1,
        2.5,
        True,
    ]
    told = chat(extension={"source": main_of('return await lm.store.get("a")')})
    assert (await there.ann.post(CHAT, json=told)).json()["extension"]["result"] == {"b": [1, None, "é"]}
    assert (await there.bob.post(CHAT, json=told)).json()["extension"]["result"] is None


async def test_one_of_many_wins(here: Worker, there: Worker) -> None:
    source = 'return await lm.store.put("lock", request.id, ttl_s=60, only_new=True)'
    won = await asyncio.gather(*(result(worker, source) for worker in (here, there) * 3))
    assert sorted(won) == [False] * 5 + [True]


HOSTILE = (
    "lm.store.get('')",
    "lm.store.get('x' * 201)",
    "lm.store.put('a', 'x' * 300000)",
    "lm.store.put('a', float('nan'))",
    "lm.store.put('a', 1, ttl_s=-1)",
    "lm.store.put('a', 1, ttl_s=0)",
    "lm.store.add('a', float('inf'))",
    "lm.store.add('a', 2 ** 60)",
    "lm.publish('', 1)",
    "lm.publish('t', 'x' * 70000)",
    "lm.push('q', 1, timeout_s=-1)",
    "lm.pull('q', timeout_s=float('nan'))",
    "lm.subscribe('x' * 201)",
    "lm.receive(-1)",
    "lm.run('')",
    "lm.run('Bad Name')",
    "lm.run('best_of_n', {'n': 'many'})",
    "lm.run('best_of_n', limits={'nothing': 1})",
    "lm.run('best_of_n', limits={'wall_s': 10 ** 9})",
    "lm.run('best_of_n', messages=json.loads('[1]'))",
    "lm.run('best_of_n', messages=json.loads('3'))",
)


async def test_hostile_arguments_are_told_to_the_script(here: Worker) -> None:
    tries = "".join(
        f"try:\n    await {call}\nexcept ValueError as error:\n    told.append(str(error))\n" for call in HOSTILE
    )
    told = await result(here, f"told = []\n{tries}return told")
    assert len(told) == len(HOSTILE)
    assert [one for one in told if not one.startswith("invalid_argument: ")] == []


async def test_names_of_any_text_are_kept_apart(here: Worker) -> None:
    source = """
    names = ["a", "a:b", "1:a", "é", "{x}", "*", " ", chr(0), "a" + chr(10) + "b"]
    for at, name in enumerate(names):
        await lm.store.put(name, at)
        await lm.push(name, at)
    return [[await lm.store.get(name), await lm.pull(name)] for name in names]
    """
    assert await result(here, source) == [[at, at] for at in range(9)]


# -- messages -------------------------------------------------------------------------------------------------------


async def test_programs_in_different_workers_hear_each_other(here: Worker, there: Worker) -> None:
    hears = """
    news = await lm.subscribe("news")
    await lm.push("ready", 1)
    return [await news.next(timeout_s=60) for _ in range(3)] + [news.missed]
    """
    listening = [asyncio.create_task(result(worker, hears)) for worker in (here, there)]
    tells = """
    for _ in range(2):
        await lm.pull("ready", timeout_s=60)
    for n in range(3):
        await lm.publish("news", {"n": n})
    """
    await result(there, tells)
    assert await asyncio.gather(*listening) == [[{"n": 0}, {"n": 1}, {"n": 2}, 0]] * 2


async def test_two_that_wait_on_one_subscription_each_get_a_message(here: Worker) -> None:
    source = """
    news = await lm.subscribe("news")
    async def hear():
        return await news.next(timeout_s=60)
    async def tell():
        for n in range(2):
            await lm.publish("news", n)
    first, second, _ = await asyncio.gather(hear(), hear(), tell())
    return sorted([first, second])
    """
    assert await result(here, source) == [0, 1]


async def test_work_is_shared_out_by_a_queue(here: Worker, there: Worker) -> None:
    takes = """
    done = []
    while (job := await lm.pull("jobs", timeout_s=60)) is not None:
        done.append(job)
        await lm.sleep(0.01)
    return done
    """
    working = [asyncio.create_task(result(worker, takes)) for worker in (here, there)]
    await result(
        here, "for n in range(20):\n    await lm.push('jobs', n)\nfor _ in range(2):\n    await lm.push('jobs', None)"
    )
    done = await asyncio.gather(*working)
    assert sorted(done[0] + done[1]) == list(range(20))


async def test_waiting_for_messages_ends_in_time(here: Worker) -> None:
    source = """
    told = []
    news = await lm.subscribe("news")
    for wait in (lambda: news.next(0.05), lambda: lm.pull("q", timeout_s=0), lambda: lm.receive(0.01)):
        try:
            await wait()
        except TimeoutError as error:
            told.append(str(error).partition(":")[0])
    return told
    """
    assert await result(here, source) == ["receive_timeout"] * 3


async def test_a_full_queue_is_an_error_that_is_not_taken_for_a_limit_of_the_run(here: Worker) -> None:
    error = await failure(here, "for n in range(1001):\n    await lm.push('q', n)")
    assert (error["code"], error["type"]) == ("limit_exceeded", "extension_error")
    assert "queue 'q' is full" in error["message"]


async def test_a_run_that_is_cancelled_waits_no_longer(here: Worker) -> None:
    run = await begin(here.ann, "await asyncio.gather(lm.receive(), lm.pull('q'), (await lm.subscribe('t')).next())")
    bells = here.services.programs.doors.bells
    assert bells is not None
    await until(lambda: bells.num_listening == 3)
    await here.ann.post(f"/v1/runs/{run['id']}/cancel")
    assert bells.num_listening == 0


async def test_a_plain_request_gets_no_input(here: Worker) -> None:
    source = main_of("try:\n    await lm.receive()\nexcept TimeoutError as error:\n    return {'told': str(error)}")
    answer = await here.ann.post(CHAT, json=chat(extension={"source": source}))
    assert answer.json()["extension"]["result"]["told"].startswith("receive_timeout: no input can come")


async def test_without_a_store_programs_are_told_what_is_missing(engine: ScriptedEngine, model: TextModel) -> None:
    worker = Worker(engine, model, "")
    source = """
    told = list(lm.model.capabilities)
    for call in (lambda: lm.store.get("a"), lambda: lm.publish("t", 1), lambda: lm.pull("q")):
        try:
            await call()
        except RuntimeError as error:
            told.append(str(error).partition(":")[0])
    return told
    """
    answer = await worker.ann.post(CHAT, json=chat(extension={"source": main_of(source)}))
    told = answer.json()["extension"]["result"]
    assert told[-3:] == ["capability_missing"] * 3
    assert "children" in told
    assert not {"store", "messages", "inbox"} & set(told)
    await worker.close()


# -- children -------------------------------------------------------------------------------------------------------


async def test_a_program_runs_another_and_gets_what_it_came_to(
    here: Worker, engine: ScriptedEngine, model: TextModel
) -> None:
    await register(here, ECHO)
    source = """
    child = await lm.run("echo", {"n": 3})
    other = await lm.run("echo@1", messages=[{"role": "user", "content": "else"}])
    return [child.result, child.text, child.logs, child.usage.completion_tokens, child.exec_path, other.result["said"]]
    """
    run = await ended(here.ann, (await begin(here.ann, source, messages=HI))["id"])
    (first, text, logs, tokens, path, said) = run["result"]
    assert (first["n"], first["said"], first["id"]) == (3, ["hi"], f"{run['id']}.1")
    assert (text, logs, tokens, path, said) == ("", "in 3\n", 3, "fused", ["else"])
    assert run["usage"]["children"] == 2
    assert run["usage"]["completion_tokens"] == 4
    assert run["usage"]["generations"] == 2


async def test_a_shipped_program_can_be_a_child(here: Worker, engine: ScriptedEngine, model: TextModel) -> None:
    engine.script = says(model, "Hello there.")
    source = 'return (await lm.run("best_of_n", {"n": 2}, messages=[{"role": "user", "content": "x"}])).text'
    run = await ended(here.ann, (await begin(here.ann, source))["id"])
    assert run["content"] == "Hello there."


async def test_a_text_that_a_program_brings_is_checked_and_run(here: Worker) -> None:
    source = """
    begin = "async def main(request, lm):\\n    "
    child = await lm.run_source(begin + "print(request.args['n'] * 2)\\n    return [1]\\n", {"n": 4})
    told = []
    for text in [begin + "return lm.nothing\\n", "1 / 0 +", "x" * 300000]:
        try:
            await lm.run_source(text)
        except ValueError as error:
            told.append(str(error))
    return [child.logs, child.result, told]
    """
    logs, value, told = await result(here, source)
    assert (logs, value) == ("8\n", [1])
    assert all(one.startswith("program_invalid: ") for one in told), told
    assert "line 2" in told[0]


async def test_programs_start_programs_only_so_deep(here: Worker) -> None:
    await register(here, NESTS)
    assert await result(here, 'return (await lm.run("nests", {"depth": 2})).result') == 0
    error = await failure(here, 'return (await lm.run("nests", {"depth": 3})).result')
    assert error["code"] == "child_failed"
    assert "3 deep at most" in error["message"]


async def test_children_are_counted_over_all_generations(here: Worker) -> None:
    await register(here, NESTS)
    source = 'for _ in range(3):\n    await lm.run("nests", {"depth": 1})'
    error = await failure(here, source, limits={"children": 5})
    assert (error["code"], error["limit"], error["allowed"]) == ("limit_exceeded", "children", 5)


async def test_what_a_child_uses_ends_its_parent_at_the_parents_limit(here: Worker) -> None:
    await register(here, ECHO)
    source = """
    for _ in range(3):
        try:
            await lm.run("echo", {"n": 3})
        except RuntimeError:
            pass
    return "never"
    """
    error = await failure(here, source, messages=HI, limits={"decode_tokens": 5})
    assert (error["code"], error["limit"]) == ("limit_exceeded", "decode_tokens")


async def test_a_child_has_limits_of_its_own(here: Worker) -> None:
    await register(here, ECHO)
    source = """
    try:
        await lm.run("echo", {"n": 3}, limits={"decode_tokens": 2})
    except RuntimeError as error:
        return str(error)
    """
    told = await result(here, source, messages=HI)
    assert told.startswith("child_failed: echo: limit_exceeded: ")


async def test_a_child_that_fails_says_how(here: Worker) -> None:
    await register(
        here, 'EXTENSION = {"name": "bad", "version": "1.0.0"}\nasync def main(request, lm):\n    return 1 / 0\n'
    )
    source = """
    told = []
    for name in ("bad", "none_such"):
        try:
            await lm.run(name)
        except (RuntimeError, LookupError) as error:
            told.append(str(error))
    return told
    """
    failed, unknown = await result(here, source)
    assert failed.startswith("child_failed: bad: extension_error: The program raised ZeroDivisionError")
    assert unknown.startswith("extension_not_found: ")


async def test_children_are_those_of_their_owner(here: Worker) -> None:
    await register(here, ECHO)
    source = main_of('return (await lm.run("echo")).result')
    answer = await here.bob.post(CHAT, json=chat(extension={"source": source}))
    assert problem(answer, 400)["code"] == "extension_not_found"


async def test_children_end_with_their_parent(here: Worker, engine: ScriptedEngine) -> None:
    await register(here, HOLDS)
    run = await begin(here.ann, 'await asyncio.gather(lm.run("holds"), lm.run("holds"))')
    await until(lambda: len(engine.contexts.histories) == 2)
    await here.ann.post(f"/v1/runs/{run['id']}/cancel")
    assert engine.contexts.histories == {}
    assert here.services.runtime.programs.runs == set()


async def test_a_parent_that_ends_by_itself_ends_what_it_did_not_wait_for(here: Worker, engine: ScriptedEngine) -> None:
    await register(here, HOLDS)
    source = """
    async def start():
        await lm.run("holds")
    async def leave():
        await lm.sleep(0.1)
        raise ValueError("enough")
    await asyncio.gather(start(), leave())
    """
    error = await failure(here, source)
    assert "enough" in error["message"]
    assert engine.contexts.histories == {}
    assert here.services.runtime.programs.runs == set()


async def test_the_texts_of_children_are_not_told_to_the_client(here: Worker) -> None:
    await register(
        here, 'EXTENSION = {"name": "loud", "version": "1.0.0"}\nasync def main(request, lm):\n    await lm.emit("x")\n'
    )
    run = await begin(here.ann, 'return {"text": (await lm.run("loud")).text}')
    done = await ended(here.ann, run["id"])
    assert (done["result"], done["content"]) == ({"text": "x"}, None)
    assert [one["type"] for one in await events(here.ann, run["id"])] == ["run.started", "run.completed"]
