"""Stored responses: going on from one, listing its input, forgetting it, and who may see it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from redis import Redis

from engine.text.model import TextModel
from gateway.errors import StoreUnavailable
from tests.fakes import ScriptedEngine, scripted_client
from tests.gateway.responses.wire import RESPONSES, ask, create, get, prompt_of, refuse, stream, text_of
from tests.gateway.wire import error_of


async def test_a_response_goes_on_from_the_one_before_without_its_instructions(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    first = await create(client, input="one", instructions="Be brief.")
    second = (await stream(client, input="two", previous_response_id=first["id"]))[-1]["response"]
    third = await create(client, input="three", previous_response_id=second["id"], instructions="Be long.")
    assert third["previous_response_id"] == second["id"]
    answer = "<|begin|>assistant\nHello there.<|end|>\n"
    assert prompt_of(engine, model) == (
        "<|begin|>system\nBe long.<|end|>\n"
        f"<|begin|>user\none<|end|>\n{answer}<|begin|>user\ntwo<|end|>\n{answer}"
        "<|begin|>user\nthree<|end|>\n<|begin|>assistant\n"
    )


async def test_a_chain_outlives_its_first_links(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    first = await create(client, input="one")
    second = await create(client, input="two", previous_response_id=first["id"])
    assert (await client.delete(f"{RESPONSES}/{first['id']}")).status_code == 200
    await create(client, input="three", previous_response_id=second["id"])
    assert "user\none<" in prompt_of(engine, model)
    await refuse(client, param="previous_response_id", previous_response_id=first["id"])


async def test_two_responses_go_on_from_the_same_one(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    first = await create(client, input="one")
    await create(client, input="left", previous_response_id=first["id"])
    await create(client, input="right", previous_response_id=first["id"])
    assert "left" not in prompt_of(engine, model)


async def test_what_was_deleted_is_gone(client: httpx.AsyncClient) -> None:
    answer = await create(client)
    path = f"{RESPONSES}/{answer['id']}"
    gone = {"id": answer["id"], "object": "response.deleted", "deleted": True}
    assert (await client.delete(path)).json() == gone
    for response in (
        await client.get(path),
        await client.delete(path),
        await client.get(path, params={"stream": "true"}),
        await client.get(f"{path}/input_items"),
        await client.post(f"{path}/cancel"),
    ):
        assert error_of(response, 404)["param"] == "response_id"


async def test_g_71_only_what_runs_in_the_background_can_be_cancelled(client: httpx.AsyncClient) -> None:
    answer = await create(client, store=True)
    error_of(await client.post(f"{RESPONSES}/{answer['id']}/cancel"), 400)
    assert await get(client, f"responses/{answer['id']}") == answer


async def test_g_72_no_more_are_kept_than_allowed(engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
    async with scripted_client(engine, model, redis_url=redis_url, max_stored=5) as client:
        ids = [(await create(client))["id"] for _ in range(12)]
        statuses = [(await client.get(f"{RESPONSES}/{one}")).status_code for one in ids]
    assert statuses == [404] * 7 + [200] * 5


async def test_a_response_too_large_to_keep_is_answered_and_says_so(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    async with scripted_client(engine, model, redis_url=redis_url, max_stored_bytes=1024) as client:
        assert (await create(client))["store"] is False
        events = await stream(client)
        assert [event["response"]["store"] for event in events if "response" in event] == [True, True, False]


INPUT: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "blue"},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Sure?", "id": "msg_mine"},
]


async def test_input_items_are_listed_in_pages(client: httpx.AsyncClient) -> None:
    answer = await create(client, input=INPUT)
    path = f"responses/{answer['id']}/input_items"
    listed = await get(client, path)
    assert [item["type"] for item in listed["data"]] == [
        "message",
        "message",
        "function_call_output",
        "function_call",
        "message",
    ]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == ("msg_mine", listed["data"][-1]["id"])
    assert listed["data"][0]["content"] == [{"type": "input_text", "text": "Sure?"}]
    assert listed["data"][1]["content"][0]["type"] == "output_text"
    assert all(item["status"] == "completed" and item["id"] for item in listed["data"])
    ascending = await get(client, path, order="asc")
    assert ascending["data"] == listed["data"][::-1]
    first = await get(client, path, order="asc", limit=2)
    assert (first["data"], first["has_more"]) == (ascending["data"][:2], True)
    rest = await get(client, path, order="asc", limit=3, after=first["last_id"])
    assert (rest["data"], rest["has_more"]) == (ascending["data"][2:], False)


@pytest.mark.parametrize(
    ("params", "param"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")],
)
async def test_a_page_that_cannot_be_is_refused(client: httpx.AsyncClient, params: dict[str, Any], param: str) -> None:
    answer = await create(client)
    error = error_of(await client.get(f"{RESPONSES}/{answer['id']}/input_items", params=params), 400)
    assert error["param"] == param


async def test_an_item_can_be_referred_to_by_its_id(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    first = await create(client, input="one")
    reference = {"id": first["output"][0]["id"]}
    await create(client, input=[reference, {"role": "user", "content": "two"}])
    assert "assistant\nHello there.<|end|>\n<|begin|>user\ntwo" in prompt_of(engine, model)
    await client.delete(f"{RESPONSES}/{first['id']}")
    await refuse(client, param="input[0].id", input=[{"type": "item_reference", **reference}])


async def test_nothing_is_seen_with_another_key(engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
    async with scripted_client(engine, model, redis_url=redis_url, api_keys=("k1", "k2")) as client:
        client.headers["authorization"] = "Bearer k1"
        answer = await create(client)
        conversation = (await client.post("/v1/conversations", json={"items": INPUT})).json()
        item = (await get(client, f"conversations/{conversation['id']}/items"))["data"][0]
        client.headers["authorization"] = "bearer  k2"
        path = f"{RESPONSES}/{answer['id']}"
        for response in (
            await client.get(path),
            await client.get(path, params={"stream": "true"}),
            await client.get(f"{path}/input_items"),
            await client.post(f"{path}/cancel"),
            await client.delete(path),
            await client.get(f"/v1/conversations/{conversation['id']}"),
            await client.get(f"/v1/conversations/{conversation['id']}/items"),
            await client.get(f"/v1/conversations/{conversation['id']}/items/{item['id']}"),
            await client.post(f"/v1/conversations/{conversation['id']}", json={"metadata": {}}),
            await client.post(f"/v1/conversations/{conversation['id']}/items", json={"items": INPUT}),
            await client.delete(f"/v1/conversations/{conversation['id']}/items/{item['id']}"),
            await client.delete(f"/v1/conversations/{conversation['id']}"),
            await client.post(RESPONSES, json=ask(conversation=conversation["id"])),
        ):
            error_of(response, 404)
        await refuse(client, param="previous_response_id", previous_response_id=answer["id"])
        await refuse(client, param="input[0].id", input=[{"id": answer["output"][0]["id"]}])
        await refuse(client, param="input[0].id", input=[{"id": item["id"]}])
        client.headers["authorization"] = "Bearer  k1 "
        assert await get(client, f"responses/{answer['id']}") == answer
        assert text_of(await create(client, previous_response_id=answer["id"])) == "Hello there."


async def test_keys_are_not_stored(engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
    async with scripted_client(engine, model, redis_url=redis_url, api_keys=("secret-key",)) as client:
        client.headers["authorization"] = "Bearer secret-key"
        await create(client)
    with Redis.from_url(redis_url) as redis:
        stored = [redis.hgetall(key) for key in redis.keys("*r:*")]
    assert len(stored) == 1
    assert b"secret-key" not in b"".join(value for record in stored for value in record.values())


async def test_a_store_that_goes_away_meanwhile_costs_no_answer(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_store(*_: Any) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr("gateway.state.store.ResponseStore.add_events", no_store)
    assert (await create(client))["store"] is False
