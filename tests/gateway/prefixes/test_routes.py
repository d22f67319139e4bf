"""/v1/prefixes, and requests that go on from one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import pytest
from redis import Redis

from engine.errors import EngineStopped
from engine.text.chat_template import ChatTemplate
from engine.text.model import TextModel
from tests.fakes import MODEL, TEMPLATE, ScriptedEngine
from tests.gateway.prefixes.programs import IMPORT, run
from tests.gateway.runs.workers import Worker, until
from tests.gateway.wire import CHAT, TEXT, Body, chat, error_of, stream, text

PREFIXES = "/v1/prefixes"
SYSTEM = [{"role": "system", "content": "Be brief."}]


async def make(client: httpx.AsyncClient, **fields: Any) -> Body:
    answer = await client.post(PREFIXES, json={"name": "h", "messages": SYSTEM, **fields})
    assert answer.status_code == 200, answer.text
    made: Body = answer.json()
    return made


async def get(client: httpx.AsyncClient, path: str = "/h", **params: Any) -> Body:
    answer = await client.get(PREFIXES + path, params=params)
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


async def asked(client: httpx.AsyncClient, **fields: Any) -> Body:
    answer = await client.post(CHAT, json=chat(prefix={"name": "h"}, **fields))
    assert answer.status_code == 200, answer.text
    found: Body = answer.json()
    return found


async def test_a_prefix_is_made_described_listed_changed_and_deleted(
    engine: ScriptedEngine, here: Worker, there: Worker
) -> None:
    made = await make(here.ann, ttl=100, metadata={"a": "b"})
    assert made["id"].startswith("pfx_")
    assert (made["object"], made["name"], made["version"], made["model"]) == ("prefix", "h", 1, MODEL)
    assert (made["ttl"], made["ttl_mode"], made["visibility"], made["metadata"]) == (
        100,
        "sliding",
        "tenant",
        {"a": "b"},
    )
    assert made["expires_at"] - made["created_at"] == 100
    assert len(next(iter(engine.contexts.exports.values()))) == made["tokens"]
    for path in ("/h", f"/{made['id']}"):
        assert await get(there.ann, path) == made
    listed = await get(there.ann, "")
    assert (listed["data"], listed["has_more"], listed["first_id"]) == ([made], False, made["id"])
    changed = (await there.ann.post(f"{PREFIXES}/h", json={"ttl": 500, "visibility": "shared", "allow": ["x"]})).json()
    assert (changed["ttl"], changed["visibility"], changed["allow"]) == (500, "shared", ["x"])
    assert changed["metadata"] == {"a": "b"}
    assert list(engine.contexts.kept_ms.values()) == [500_000]
    deleted = (await here.ann.delete(f"{PREFIXES}/h")).json()
    assert (deleted["id"], deleted["object"], deleted["deleted"]) == (made["id"], "prefix.deleted", True)
    assert engine.contexts.exports == {}
    assert error_of(await there.ann.get(f"{PREFIXES}/h"), 404)["code"] == "prefix_not_found"
    error_of(await there.ann.delete(f"{PREFIXES}/h"), 404)


@pytest.mark.parametrize("given", [{"input": "a text"}, {"tokens": [1, 2, 3]}, {"messages": SYSTEM}])
async def test_what_is_kept_are_messages_a_text_or_tokens(
    engine: ScriptedEngine, model: TextModel, here: Worker, given: Body
) -> None:
    answer = await here.ann.post(PREFIXES, json={"name": "h", **given})
    assert answer.status_code == 200, answer.text
    ids = engine.last.prompt_ids
    assert answer.json()["tokens"] == len(ids)
    if "tokens" in given:
        assert ids == [1, 2, 3]
    elif "input" in given:
        assert ids == model.tokenizer.encode("a text", add_special=True)
    else:
        assert model.tokenizer.decode(ids, skip_special=False) == "<|begin|>system\nBe brief.<|end|>\n"


async def test_a_chat_behind_a_prefix_is_the_chat_of_all_messages(engine: ScriptedEngine, here: Worker) -> None:
    made = await make(here.ann)
    plain = (await here.ann.post(CHAT, json=chat(messages=[*SYSTEM, *chat()["messages"]]))).json()
    expected = engine.last.prompt_ids
    found = await asked(here.ann)
    assert engine.last.prompt_ids == expected
    assert found["choices"][0]["message"] == plain["choices"][0]["message"]
    assert found["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] == len(expected)
    assert found["kv"] == {"prefix_id": made["id"], "prefix_status": "warm", "recomputed": False}
    assert "kv" not in plain
    by_id = chat(prefix={"id": made["id"], "on_miss": "fail"})
    assert (await here.ann.post(CHAT, json=by_id)).json()["kv"] == found["kv"]
    assert (await get(here.ann))["usage"]["imports"] == 2


async def test_a_stream_tells_of_the_prefix_and_lets_go_of_it(engine: ScriptedEngine, here: Worker) -> None:
    await make(here.ann)
    parts = await stream(here.ann, chat(prefix={"name": "h"}))
    assert all(part["kv"]["prefix_status"] == "warm" for part in parts)
    parts = await stream(here.ann, text(prefix={"name": "h"}), TEXT)
    assert all(part["kv"]["recomputed"] is False for part in parts)
    assert engine.contexts.histories == {}


async def test_a_text_goes_behind_a_prefix(engine: ScriptedEngine, model: TextModel, here: Worker) -> None:
    await make(here.ann, messages=None, input="Once upon")
    start = model.tokenizer.encode("Once upon", add_special=True)
    for prompt in (" a time", model.tokenizer.encode(" a time", add_special=False)):
        answer = await here.ann.post(TEXT, json=text(prefix={"name": "h"}, prompt=prompt))
        assert answer.json()["kv"]["prefix_status"] == "warm"
        assert engine.last.prompt_ids == [*start, *model.tokenizer.encode(" a time", add_special=False)]


async def test_tools_are_told_of_in_a_prefix_or_behind_it(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    tools_first = ChatTemplate("{% if tools %}{{ tools | tojson }}{% endif %}" + TEMPLATE.replace("if tools", "if no"))
    worker = Worker(engine, replace(model, chat_template=tools_first), redis_url)
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
    told = await make(worker.ann, tools=[tool])
    assert "look_up" in model.tokenizer.decode(engine.last.prompt_ids)
    await asked(worker.ann)
    assert "look_up" not in model.tokenizer.decode(engine.last.prompt_ids[told["tokens"] :])
    made = await make(worker.ann)
    assert "look_up" not in model.tokenizer.decode(engine.last.prompt_ids)
    await asked(worker.ann, tools=[tool])
    assert "look_up" in model.tokenizer.decode(engine.last.prompt_ids[made["tokens"] :])
    await worker.close()


async def test_what_the_engine_has_lost_is_cold_until_it_is_warmed(engine: ScriptedEngine, here: Worker) -> None:
    await make(here.ann)
    engine.contexts.exports.clear()
    assert (await get(here.ann))["status"] == "cold"
    found = await asked(here.ann)
    assert (found["kv"]["prefix_status"], found["kv"]["recomputed"]) == ("cold", True)
    refused = await here.ann.post(CHAT, json=chat(prefix={"name": "h", "on_miss": "fail"}))
    assert error_of(refused, 410)["code"] == "prefix_lost"
    warmed = await here.ann.post(f"{PREFIXES}/h/warm")
    assert warmed.status_code == 200
    assert len(engine.contexts.exports) == 1
    num_requests = len(engine.requests)
    await here.ann.post(f"{PREFIXES}/h/evict")
    assert engine.contexts.exports == {}
    assert (await get(here.ann))["status"] == "cold"
    assert len(engine.requests) == num_requests


async def test_nobody_else_sees_uses_or_changes_it_unless_it_is_shared(here: Worker) -> None:
    made = await make(here.ann)
    path = f"{PREFIXES}/{made['id']}"
    for answer in (
        await here.bob.get(path),
        await here.bob.post(path, json={"ttl": 5}),
        await here.bob.patch(path, json={"ttl": 5}),
        await here.bob.post(f"{path}/warm"),
        await here.bob.post(f"{path}/evict"),
        await here.bob.delete(path),
        await here.bob.post(CHAT, json=chat(prefix={"id": made["id"]})),
        await here.bob.get(f"{PREFIXES}/h"),
    ):
        error = error_of(answer, 404)
        assert error["code"] == "prefix_not_found"
        assert error["param"] == ("prefix.id" if answer.url.path == CHAT else "prefix_id")
    assert (await get(here.bob, ""))["data"] == []
    await here.ann.patch(path, json={"visibility": "shared"})
    used = await here.bob.post(CHAT, json=chat(prefix={"id": made["id"]}))
    assert used.json()["kv"]["prefix_status"] == "warm"
    for answer in (await here.bob.post(path, json={"ttl": 5}), await here.bob.delete(path)):
        assert error_of(answer, 404)["param"] == "prefix_id"
    bob = (await here.bob.get(f"{PREFIXES}/{made['id']}")).json()
    await here.ann.patch(path, json={"allow": ["somebody else"]})
    assert bob["id"] == made["id"]
    error_of(await here.bob.post(CHAT, json=chat(prefix={"id": made["id"]})), 404)


async def test_a_change_of_what_was_changed_meanwhile_is_refused(here: Worker) -> None:
    await make(here.ann)
    etag = (await here.ann.get(f"{PREFIXES}/h")).headers["etag"]
    first = await here.ann.post(f"{PREFIXES}/h", json={"metadata": {"n": "1"}}, headers={"If-Match": etag})
    assert first.status_code == 200
    second = await here.ann.post(f"{PREFIXES}/h", json={"metadata": {"n": "2"}}, headers={"If-Match": etag})
    assert error_of(second, 412)["code"] == "precondition_failed"
    again = {"If-Match": first.headers["etag"]}
    assert (await here.ann.post(f"{PREFIXES}/h", json={"metadata": {"n": "2"}}, headers=again)).status_code == 200
    assert (await get(here.ann))["metadata"] == {"n": "2"}


async def test_versions_are_found_by_number_and_listed(here: Worker) -> None:
    first, second = await make(here.ann), await make(here.ann)
    assert (first["version"], second["version"]) == (1, 2)
    assert (await get(here.ann))["id"] == second["id"]
    assert (await get(here.ann, at=1))["id"] == first["id"]
    error_of(await here.ann.get(f"{PREFIXES}/h", params={"at": 3}), 404)
    other = await make(here.ann, name="g")
    assert [one["id"] for one in (await get(here.ann, "", name="h"))["data"]] == [second["id"], first["id"]]
    page = await get(here.ann, "", limit=2)
    assert ([one["id"] for one in page["data"]], page["has_more"]) == ([other["id"], second["id"]], True)
    rest = await get(here.ann, "", after=page["last_id"])
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == ([first["id"]], False)
    assert error_of(await here.ann.get(PREFIXES, params={"after": "x"}), 400)["param"] == "after"


async def test_one_of_another_model_is_refused_and_one_whose_time_is_over_gone(here: Worker, redis_url: str) -> None:
    made = await make(here.ann)
    with Redis.from_url(redis_url) as redis:
        redis.hset("{wye}:px:" + made["id"], "fingerprint", "another")
        error = error_of(await here.ann.post(CHAT, json=chat(prefix={"name": "h"})), 409)
        assert (error["code"], error["param"]) == ("fingerprint_mismatch", "prefix.name")
        redis.hset("{wye}:px:" + made["id"], "expires_ms", 1)
    for answer in (
        await here.ann.get(f"{PREFIXES}/{made['id']}"),
        await here.ann.post(CHAT, json=chat(prefix={"name": "h"})),
        await here.ann.post(f"{PREFIXES}/h/warm"),
    ):
        assert error_of(answer, 410)["code"] == "prefix_expired"
    assert (await get(here.ann, ""))["data"] == []


async def test_work_that_runs_goes_on_when_its_prefix_is_deleted(
    engine: ScriptedEngine, model: TextModel, here: Worker
) -> None:
    await make(here.ann)
    going = asyncio.Event()
    ids = model.tokenizer.encode("Still here.", add_special=False)
    engine.script = lambda request, index: [ids[:1], going, ids[1:]]
    answer = asyncio.create_task(asked(here.ann))
    await until(lambda: engine.streams)
    await here.ann.delete(f"{PREFIXES}/h")
    assert engine.contexts.exports == {}
    going.set()
    assert (await answer)["choices"][0]["message"]["content"] == "Still here."


async def test_a_program_goes_on_from_a_prefix_of_http(here: Worker) -> None:
    made = await make(here.ann)
    assert (await run(here.ann, IMPORT, name="h"))["length"] == made["tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"name": None}, "name"),
        ({"name": "../x"}, "name"),
        ({"name": "A"}, "name"),
        ({"name": "x/warm"}, "name"),
        ({"name": "pfx_1"}, "name"),
        ({"messages": None}, "messages"),
        ({"input": "x"}, "input"),
        ({"tokens": [1], "response_id": "resp_1"}, "tokens"),
        ({"messages": None, "tokens": []}, "tokens"),
        ({"messages": None, "tokens": [10**6]}, "tokens[0]"),
        ({"messages": None, "tokens": [-1]}, "tokens[0]"),
        ({"messages": None, "tokens": [1] * 5000}, "tokens"),
        ({"messages": None, "input": ""}, "input"),
        ({"messages": [{"role": "forbidden", "content": "x"}]}, "messages[0].role"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": 10**9}, "ttl"),
        ({"ttl": "1"}, "ttl"),
        ({"ttl_mode": "never"}, "ttl_mode"),
        ({"visibility": "all"}, "visibility"),
        ({"allow": [""]}, "allow[0]"),
        ({"metadata": {str(at): "" for at in range(17)}}, "metadata"),
        ({"messages": None, "input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ],
)
async def test_what_cannot_be_kept_is_refused_before_any_work(
    engine: ScriptedEngine, here: Worker, fields: Body, param: str | None
) -> None:
    answer = await here.ann.post(PREFIXES, json={"name": "h", "messages": SYSTEM, **fields})
    assert error_of(answer, 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prefix": {}}, "prefix.id"),
        ({"prefix": {"id": "pfx_1", "name": "h"}}, "prefix.name"),
        ({"prefix": {"id": "h"}}, "prefix.id"),
        ({"prefix": {"name": "h", "on_miss": "none"}}, "prefix.on_miss"),
        ({"prefix": {"name": "h"}, "n": 2}, "n"),
        ({"prefix": {"name": "h"}, "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prefix": {"name": "h"}, "server_tools": ["x"]}, "server_tools"),
        ({"prefix": {"name": "h"}, "model": "ext:x"}, "prefix"),
        ({"prefix": {"name": "h"}, "extension": {"name": "x"}}, "extension"),
    ],
)
async def test_a_request_that_cannot_go_behind_a_prefix_is_refused(
    engine: ScriptedEngine, here: Worker, fields: Body, param: str
) -> None:
    assert error_of(await here.ann.post(CHAT, json=chat(**fields)), 400)["param"] == param
    assert engine.requests == []


@pytest.mark.parametrize(
    "fields", [{"prompt": ["a", "b"]}, {"prompt": [10**6]}, {"echo": True}, {"best_of": 2}, {"suffix": "x"}]
)
async def test_a_text_that_cannot_go_behind_a_prefix_is_refused(here: Worker, fields: Body) -> None:
    await make(here.ann)
    answer = await here.ann.post(TEXT, json=text(prefix={"name": "h"}, **fields))
    assert error_of(answer, 400)["param"] in (next(iter(fields)), "prompt[0]")


async def test_a_refused_request_lets_go_of_the_prefix(engine: ScriptedEngine, here: Worker) -> None:
    await make(here.ann)
    error_of(await here.ann.post(CHAT, json=chat(prefix={"name": "h"}, max_tokens=10**6)), 400)
    engine.refusal = EngineStopped("no engine")
    error_of(await here.ann.post(CHAT, json=chat(prefix={"name": "h"})), 503)
    assert engine.contexts.histories == {}
    engine.refusal = None
    assert (await asked(here.ann))["kv"]["prefix_status"] == "warm"


async def test_there_is_room_for_so_many(here: Worker) -> None:
    for _ in range(4):
        await make(here.ann)
    answer = await here.ann.post(PREFIXES, json={"name": "h", "messages": SYSTEM})
    assert error_of(answer, 400)["code"] == "prefixes_full"
    await here.ann.delete(f"{PREFIXES}/h")
    await make(here.ann)


@pytest.mark.parametrize("url", ["", "redis://127.0.0.1:1/0"])
async def test_without_a_store_that_answers_nothing_is_computed(
    engine: ScriptedEngine, model: TextModel, url: str
) -> None:
    worker = Worker(engine, model, url)
    for answer in (
        await worker.ann.post(PREFIXES, json={"name": "h", "messages": SYSTEM}),
        await worker.ann.get(PREFIXES),
        await worker.ann.get(f"{PREFIXES}/h"),
        await worker.ann.post(CHAT, json=chat(prefix={"name": "h"})),
    ):
        assert error_of(answer, 503)["code"] == "store_unavailable"
    assert engine.requests == []
    await worker.close()
