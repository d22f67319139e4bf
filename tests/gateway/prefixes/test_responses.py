"""Responses that go behind a prefix, and prefixes made of responses."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from gateway.errors import StoreUnavailable
from tests.fakes import ScriptedEngine
from tests.gateway.prefixes.test_routes import PREFIXES, SYSTEM, get, make
from tests.gateway.responses.wire import RESPONSES, ask, events_of, prompt_of, text_of
from tests.gateway.runs.workers import Worker, main_of, until
from tests.gateway.wire import Body, error_of

ANSWER = "<|begin|>assistant\nHello there.<|end|>\n"
BEFORE = "<|begin|>system\nBe brief.<|end|>\n"


async def respond(client: httpx.AsyncClient, **fields: Any) -> Body:
    answer = await client.post(RESPONSES, json=ask(**fields))
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


async def kept(client: httpx.AsyncClient, response_id: str, **fields: Any) -> Body:
    answer = await client.post(PREFIXES, json={"name": "r", "response_id": response_id, **fields})
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


async def test_a_response_goes_behind_a_prefix_whole_streamed_and_in_the_background(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    made = await make(here.ann)
    expected = f"{BEFORE}<|begin|>user\nhi<|end|>\n<|begin|>assistant\n"
    found = await respond(here.ann, prefix={"name": "h"})
    assert prompt_of(engine, model) == expected
    kv = {"prefix_id": made["id"], "prefix_status": "warm", "recomputed": False}
    assert (text_of(found), found["kv"]) == ("Hello there.", kv)
    assert found["usage"]["input_tokens"] == len(engine.last.prompt_ids)
    streamed = await here.ann.post(RESPONSES, json=ask(prefix={"id": made["id"]}, stream=True))
    assert events_of(streamed.text)[-1]["response"]["kv"] == kv
    queued = await respond(here.ann, prefix={"name": "h"}, background=True)

    async def is_over() -> bool:
        return bool((await here.ann.get(f"{RESPONSES}/{queued['id']}")).json()["status"] == "completed")

    await until(is_over)
    assert prompt_of(engine, model) == expected
    assert (await get(here.ann))["usage"]["imports"] == 3


async def test_turns_before_go_behind_the_prefix_too_if_it_is_named_again(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    await make(here.ann)
    first = await respond(here.ann, input="one", prefix={"name": "h"})
    await respond(here.ann, input="two", previous_response_id=first["id"], prefix={"name": "h"}, instructions="Now.")
    turns = f"<|begin|>user\none<|end|>\n{ANSWER}<|begin|>user\ntwo<|end|>\n<|begin|>assistant\n"
    assert prompt_of(engine, model) == f"{BEFORE}<|begin|>system\nNow.<|end|>\n{turns}"
    await respond(here.ann, input="two", previous_response_id=first["id"])
    assert prompt_of(engine, model) == turns


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools"),
        ({"extension": {"name": "x"}}, "extension"),
        ({"model": "ext:x"}, "prefix"),
        ({"prefix": {}}, "prefix.id"),
    ],
)
async def test_what_cannot_go_behind_a_prefix_is_refused(
    engine: ScriptedEngine, here: Worker, fields: Body, param: str
) -> None:
    await make(here.ann)
    num_requests = len(engine.requests)
    refused = await here.ann.post(RESPONSES, json=ask(**{"prefix": {"name": "h"}, **fields}))
    assert error_of(refused, 400)["param"] == param
    counted = await here.ann.post(f"{RESPONSES}/input_tokens", json={"input": "hi", "prefix": {"name": "h"}})
    assert error_of(counted, 400)["param"] == "prefix"
    missing = await here.ann.post(RESPONSES, json=ask(prefix={"name": "none"}))
    assert error_of(missing, 404)["param"] == "prefix.name"
    assert len(engine.requests) == num_requests


async def test_a_response_that_is_refused_lets_go_of_the_prefix(engine: ScriptedEngine, here: Worker) -> None:
    await make(here.ann)
    refused: list[Body] = [{"max_output_tokens": 10**6}, {"previous_response_id": "resp_none"}, {"input": []}]
    for wrong in refused:
        error_of(await here.ann.post(RESPONSES, json=ask(prefix={"name": "h"}, **wrong)), 400)
    assert engine.contexts.histories == {}


async def test_a_prefix_is_made_of_a_response_with_its_answer(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    first = await respond(here.ann, input="one")
    second = await respond(here.ann, input="two", previous_response_id=first["id"], instructions="Be kind.")
    made = await kept(here.ann, second["id"])
    assert prompt_of(engine, model) == (
        f"<|begin|>system\nBe kind.<|end|>\n<|begin|>user\none<|end|>\n{ANSWER}<|begin|>user\ntwo<|end|>\n{ANSWER}"
    )
    assert made["tokens"] == len(engine.last.prompt_ids)
    await respond(here.ann, input="three", prefix={"name": "r"})
    behind = prompt_of(engine, model)
    await respond(here.ann, input="three", previous_response_id=second["id"], instructions="Be kind.")
    assert behind == prompt_of(engine, model)


async def test_a_prefix_of_a_response_behind_a_prefix_has_both(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    await make(here.ann)
    response = await respond(here.ann, input="one", prefix={"name": "h"})
    await kept(here.ann, response["id"])
    assert prompt_of(engine, model) == f"{BEFORE}<|begin|>user\none<|end|>\n{ANSWER}"
    await here.ann.delete(f"{PREFIXES}/h")
    gone = await here.ann.post(PREFIXES, json={"name": "r", "response_id": response["id"]})
    assert error_of(gone, 404)["param"] == "response_id"


async def test_a_prefix_of_a_response_knows_the_tools_of_its_client(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    tool = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}
    with_tools, none = [
        await respond(here.ann, tools=[tool], tool_choice=choice, reasoning={"effort": "low"})
        for choice in ("auto", "none")
    ]
    await kept(here.ann, with_tools["id"])
    assert "look_up" in prompt_of(engine, model)
    await kept(here.ann, none["id"])
    assert "look_up" not in prompt_of(engine, model)


async def test_a_prefix_of_a_response_that_a_program_answered(here: Worker) -> None:
    source = main_of('await lm.emit("By a program.")')
    response = await respond(here.ann, extension={"source": source})
    assert (await kept(here.ann, response["id"]))["tokens"] > 0


async def test_no_prefix_is_made_of_what_is_not_there_or_has_not_ended(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    response = await respond(here.ann)
    for client, response_id in ((here.ann, "resp_none"), (here.bob, response["id"])):
        refused = await client.post(PREFIXES, json={"name": "r", "response_id": response_id})
        assert error_of(refused, 404)["param"] == "response_id"
    going = asyncio.Event()
    ids = model.tokenizer.encode("Late.", add_special=False)
    engine.script = lambda request, index: [going, ids]
    queued = await respond(here.ann, background=True)
    refused = await here.ann.post(PREFIXES, json={"name": "r", "response_id": queued["id"]})
    assert error_of(refused, 400)["param"] == "response_id"
    await here.ann.post(f"{RESPONSES}/{queued['id']}/cancel")
    refused = await here.ann.post(PREFIXES, json={"name": "r", "response_id": queued["id"]})
    assert error_of(refused, 400)["param"] == "response_id"
    both = await here.ann.post(PREFIXES, json={"name": "r", "response_id": response["id"], "messages": SYSTEM})
    assert error_of(both, 400)["param"] == "response_id"


async def keyed(client: httpx.AsyncClient, key: str = "k", **fields: Any) -> httpx.Response:
    body = {"name": "h", "messages": SYSTEM, **fields}
    return await client.post(PREFIXES, json=body, headers={"Idempotency-Key": key})


async def test_a_request_that_is_sent_again_makes_no_second_version(
    engine: ScriptedEngine, here: Worker, there: Worker
) -> None:
    made = (await keyed(here.ann)).json()
    num_requests = len(engine.requests)
    assert (await keyed(there.ann)).json() == made
    assert len(engine.requests) == num_requests
    assert len(engine.contexts.exports) == 1
    other = await keyed(here.ann, ttl=60)
    error = error_of(other, 400)
    assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")
    assert (await keyed(here.ann, key="another")).json()["version"] == 2
    assert (await keyed(here.bob)).json()["version"] == 1
    await here.ann.delete(f"{PREFIXES}/{made['id']}")
    error_of(await keyed(there.ann), 410)
    long = await keyed(here.ann, key="k" * 1000)
    assert error_of(long, 400)["param"] == "Idempotency-Key"


async def test_two_at_once_make_one(engine: ScriptedEngine, here: Worker, there: Worker) -> None:
    answers = await asyncio.gather(keyed(here.ann), keyed(there.ann), keyed(here.ann))
    assert {answer.json()["id"] for answer in answers} == {(await get(here.ann))["id"]}
    assert [one["version"] for one in (await get(here.ann, ""))["data"]] == [1]
    assert len(engine.contexts.exports) == 1


async def test_a_request_that_failed_may_be_sent_again(
    engine: ScriptedEngine, here: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any) -> Any:
        raise StoreUnavailable("gone for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(here.services.prefixes.store, "create", fail)
        error_of(await keyed(here.ann), 503)
    error_of(await keyed(here.ann, tokens=[1]), 400)
    answer = await keyed(here.ann, metadata={"a": "b"})
    assert answer.json()["version"] == 1


async def test_a_request_whose_worker_was_killed_is_finished_by_the_next(
    engine: ScriptedEngine, here: Worker, there: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*args: Any) -> None:
        """A killed worker says nothing any more."""

    async def killed(*args: Any) -> Any:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(here.services.prefixes.store, "create", killed)
        patch.setattr(here.services.prefixes.store.claims, "give_up", nothing)
        error_of(await keyed(here.ann), 503)
    assert (await keyed(there.ann)).json()["version"] == 1
