"""`POST /v1/prefixes` with a program: what it exports or returns is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from engine.text.model import TextModel
from tests.fakes import ScriptedEngine
from tests.gateway.prefixes.programs import IMPORT, run
from tests.gateway.prefixes.test_routes import PREFIXES
from tests.gateway.runs.workers import Worker, main_of, problem, until
from tests.gateway.wire import Body

RETURNS = """
ctx = await lm.context(request.args["text"])
await ctx.generate(max_tokens=40)
return ctx
"""
EXPORTS = """
ctx = await lm.context("the handbook")
first = await ctx.export("h", ttl_s=50, visibility="shared", allow=["x"])
assert first == await ctx.export("h")
return ctx
"""


def body(source: str = RETURNS, **fields: Any) -> Body:
    program = {"source": main_of(source), "args": {"text": "the handbook"}}
    return {"name": "h", "program": program | fields.pop("program", {}), **fields}


async def made(worker: Worker, given: Body) -> Body:
    answer = await worker.ann.post(PREFIXES, json=given)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


async def test_the_context_that_a_program_returns_is_kept_as_the_request_says(
    engine: ScriptedEngine, model: TextModel, here: Worker, there: Worker
) -> None:
    found = await made(here, body(ttl=100, ttl_mode="fixed", visibility="private", metadata={"a": "b"}))
    kept = (found["ttl"], found["ttl_mode"], found["visibility"], found["metadata"], found["version"])
    assert kept == (100, "fixed", "private", {"a": "b"}, 1)
    (history,) = engine.contexts.exports.values()
    assert model.tokenizer.decode(history) == "the handbookHello there."
    assert found["program"].startswith("sha256:")
    assert (await run(there.ann, IMPORT, name="h"))["length"] == found["tokens"]
    etag = (await there.ann.get(f"{PREFIXES}/h")).headers["etag"]
    changed = await here.ann.patch(f"{PREFIXES}/h", json={"ttl": 200}, headers={"if-match": etag})
    assert changed.json()["ttl"] == 200


async def test_what_it_exports_under_the_name_is_one_version_on_its_own_terms(here: Worker) -> None:
    found = await made(here, body(EXPORTS))
    assert (found["version"], found["ttl"], found["visibility"], found["allow"]) == (1, 50, "shared", ["x"])
    again = await made(here, body(EXPORTS, ttl=70, allow=[]))
    assert (again["version"], again["ttl"], again["visibility"], again["allow"]) == (2, 70, "shared", [])


async def test_another_history_under_the_same_name_is_refused_inside_the_program(here: Worker) -> None:
    twice = """
    ctx = await lm.context("one")
    await ctx.export("h")
    await ctx.append(" two")
    await ctx.export("h")
    """
    error = problem(await here.ann.post(PREFIXES, json=body(twice)), 400)
    assert error["code"] == "invalid_argument"
    assert "has made it of another history" in error["message"]


async def test_a_registered_program_makes_one_and_other_names_are_its_own_affair(here: Worker) -> None:
    source = 'EXTENSION = {"name": "maker", "version": "1.0.0"}\n' + main_of(
        """
        ctx = await lm.context(request.args["text"])
        await ctx.export("other", ttl_s=33)
        return ctx
        """
    )
    assert (await here.ann.post("/v1/extensions", json={"source": source})).status_code == 200
    given = {"name": "h", "program": {"name": "maker@1.0.0", "args": {"text": "a"}}, "ttl": 44}
    assert (await made(here, given))["ttl"] == 44
    assert (await here.ann.get(f"{PREFIXES}/other")).json()["ttl"] == 33


async def test_it_is_charged_and_sent_again_it_makes_nothing_new(engine: ScriptedEngine, here: Worker) -> None:
    headers = {"idempotency-key": "one"}
    first = (await here.ann.post(PREFIXES, json=body(), headers=headers)).json()
    num_requests = len(engine.requests)
    assert num_requests
    assert all(request.account == first["owner"] for request in engine.requests)
    assert (await here.ann.post(PREFIXES, json=body(), headers=headers)).json()["id"] == first["id"]
    assert len(engine.requests) == num_requests


async def test_a_program_that_leaves_no_context_is_told_by_name(engine: ScriptedEngine, here: Worker) -> None:
    source = 'EXTENSION = {"name": "talker", "version": "1.0.0"}\n' + main_of("return 'words'")
    error = problem(await here.ann.post(PREFIXES, json=body(program={"source": source})), 400)
    assert (error["param"], error["code"]) == ("program", "prefix_not_made")
    assert error["message"].startswith("talker has left no context")
    problem(await here.ann.get(f"{PREFIXES}/h"), 404)
    assert engine.contexts.exports == {}


@pytest.mark.parametrize(
    ("program", "status", "param", "code"),
    [
        (
            {"source": "async def main(request, lm):\n    return request.nam\n"},
            400,
            "program.source",
            "program_invalid",
        ),
        ({"name": "nobody"}, 404, "program.name", "extension_not_found"),
        ({"source": main_of("raise ValueError('x')")}, 400, None, "extension_error"),
        ({"source": main_of("return await lm.context('')")}, 400, None, "invalid_argument"),
        ({"source": main_of(RETURNS), "limits": {"decode_tokens": 1}}, 400, None, "limit_exceeded"),
        ({"source": main_of(RETURNS), "limits": {"none": 1}}, 400, "program.limits.none", "invalid_argument"),
        ({"source": main_of(RETURNS), "args": 1}, 400, "program.args", "invalid_type"),
        ({"source": "x", "name": "y"}, 400, "program.name", None),
        ({}, 400, "program.source", None),
    ],
)
async def test_what_is_wrong_with_the_program_is_told_and_nothing_is_kept(
    engine: ScriptedEngine, here: Worker, program: Body, status: int, param: str | None, code: str | None
) -> None:
    program = {"args": {"text": "a"}, **program} if program else program
    error = problem(await here.ann.post(PREFIXES, json={"name": "h", "program": program}), status)
    assert error["param"] == param
    assert code is None or error["code"] == code
    assert engine.contexts.exports == {}


async def test_a_program_goes_with_nothing_else_that_could_be_kept(here: Worker) -> None:
    error = problem(await here.ann.post(PREFIXES, json=body(input="a text")), 400)
    assert error["param"] == "program"
    assert "'input'" in error["message"]


async def test_a_client_that_leaves_ends_the_program(engine: ScriptedEngine, model: TextModel, here: Worker) -> None:
    ids = model.tokenizer.encode("Still here.", add_special=False)
    engine.script = lambda request, index: [ids[:1], asyncio.Event(), ids[1:]]
    asked = asyncio.create_task(here.ann.post(PREFIXES, json=body()))
    await until(lambda: engine.streams)
    asked.cancel()
    await until(lambda: not engine.streams and not engine.contexts.histories)
    await until(lambda: not here.services.runtime.programs.runs)
    assert engine.contexts.exports == {}
