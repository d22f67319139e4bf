"""/v1/conversations: kept turns, and responses that go on from them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.errors import EngineStopped
from engine.text.model import TextModel
from tests.fakes import ScriptedEngine, scripted_client
from tests.gateway.responses.wire import create, get, prompt_of, refuse, stream
from tests.gateway.wire import Body, error_of

PATH = "/v1/conversations"


async def begin(client: httpx.AsyncClient, **fields: Any) -> Body:
    """A new conversation."""
    answer = await client.post(PATH, json=fields)
    assert answer.status_code == 200, answer.text
    body: Body = answer.json()
    return body


async def roles(client: httpx.AsyncClient, conversation_id: str) -> list[str]:
    """Who spoke, oldest first."""
    items = (await get(client, f"conversations/{conversation_id}/items", order="asc", limit=100))["data"]
    return [item.get("role", item["type"]) for item in items]


async def test_a_conversation_is_made_read_changed_and_forgotten(client: httpx.AsyncClient) -> None:
    made = await begin(client, metadata={"a": "b"})
    assert made["id"].startswith("conv_")
    assert made == {**made, "object": "conversation", "metadata": {"a": "b"}}
    assert isinstance(made["created_at"], int)
    path = f"{PATH}/{made['id']}"
    assert (await client.get(path)).json() == made
    changed = {**made, "metadata": {"c": "d"}}
    assert (await client.post(path, json={"metadata": {"c": "d"}})).json() == changed
    assert (await client.get(path)).json() == changed
    assert (await client.delete(path)).json() == {"id": made["id"], "object": "conversation.deleted", "deleted": True}
    for answer in (
        await client.get(path),
        await client.delete(path),
        await client.get(f"{path}/items"),
        await client.post(path, json={"metadata": {}}),
        await client.post(f"{path}/items", json={"items": "hi"}),
    ):
        assert error_of(answer, 404)["param"] == "conversation_id"


async def test_items_are_added_listed_read_and_removed(client: httpx.AsyncClient) -> None:
    made = await begin(client, items=[{"role": "user", "content": "one"}])
    path = f"{PATH}/{made['id']}/items"
    added = (
        await client.post(
            path, json={"items": [{"role": "assistant", "content": "two"}, {"role": "user", "content": "3"}]}
        )
    ).json()
    assert [item["role"] for item in added["data"]] == ["assistant", "user"]
    assert await roles(client, made["id"]) == ["user", "assistant", "user"]
    newest = (await get(client, f"conversations/{made['id']}/items", limit=1))["data"]
    assert newest == added["data"][1:]
    assert (await client.get(f"{path}/{newest[0]['id']}")).json() == newest[0]
    assert (await client.delete(f"{path}/{newest[0]['id']}")).json() == made
    assert await roles(client, made["id"]) == ["user", "assistant"]
    error_of(await client.get(f"{path}/{newest[0]['id']}"), 404)
    assert error_of(await client.delete(f"{path}/{newest[0]['id']}"), 404)["param"] == "item_id"


async def test_ids_that_clients_make_up_are_not_taken(client: httpx.AsyncClient) -> None:
    mine = {"role": "user", "content": "x", "id": "msg_mine"}
    first, second = [await begin(client, items=[mine]) for _ in range(2)]
    ids = [(await get(client, f"conversations/{one['id']}/items"))["data"][0]["id"] for one in (first, second)]
    assert len({*ids, "msg_mine"}) == 3


async def test_a_response_goes_on_from_a_conversation_and_is_added_to_it(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    made = await begin(client, items=[{"role": "developer", "content": "Rules"}])
    first = await create(client, input="one", conversation=made["id"])
    assert first["conversation"] == {"id": made["id"]}
    second = (await stream(client, input="two", conversation={"id": made["id"]}))[-1]["response"]
    assert prompt_of(engine, model) == (
        "<|begin|>system\nRules<|end|>\n<|begin|>user\none<|end|>\n<|begin|>assistant\nHello there.<|end|>\n"
        "<|begin|>user\ntwo<|end|>\n<|begin|>assistant\n"
    )
    assert await roles(client, made["id"]) == ["developer", "user", "assistant", "user", "assistant"]
    items = (await get(client, f"conversations/{made['id']}/items"))["data"]
    assert items[0] == second["output"][0]
    assert await get(client, f"responses/{second['id']}") == second


async def test_a_response_that_is_not_stored_still_answers_within_its_conversation(client: httpx.AsyncClient) -> None:
    made = await begin(client)
    await create(client, conversation=made["id"], store=False)
    assert await roles(client, made["id"]) == ["user", "assistant"]


async def test_a_failed_response_leaves_the_conversation_as_it_was(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    made = await begin(client)
    engine.script = lambda request, index: [[40], EngineStopped("the engine process ended")]
    assert (await stream(client, conversation=made["id"]))[-1]["type"] == "response.failed"
    assert await roles(client, made["id"]) == []


async def test_a_conversation_without_input_is_answered_if_it_has_turns(client: httpx.AsyncClient) -> None:
    made = await begin(client, items="one")
    await create(client, conversation=made["id"], input=None)
    empty = await begin(client)
    await refuse(client, param="input", conversation=empty["id"], input=None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"items": 5}, "items"),
        ({"items": [{"role": "user"}]}, "items[0].content"),
        ({"items": [{"id": "msg_1"}]}, "items[0].type"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ],
)
async def test_what_is_wrong_is_refused_by_name(client: httpx.AsyncClient, fields: Body, param: str) -> None:
    error = error_of(await client.post(PATH, json=fields), 400)
    assert error["param"] == param


async def test_updates_and_items_need_what_they_are_about(client: httpx.AsyncClient) -> None:
    made = await begin(client)
    assert error_of(await client.post(f"{PATH}/{made['id']}", json={}), 400)["param"] == "metadata"
    assert error_of(await client.post(f"{PATH}/{made['id']}/items", json={}), 400)["param"] == "items"
    assert error_of(await client.post(f"{PATH}/{made['id']}/items", json={"items": []}), 400)["param"] == "items"


async def test_a_conversation_larger_than_the_store_is_refused(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    async with scripted_client(engine, model, redis_url=redis_url, max_stored_bytes=2048) as client:
        large = [{"role": "user", "content": "x" * 4000}]
        assert error_of(await client.post(PATH, json={"items": large}), 400)["param"] == "items"
        made = await begin(client)
        assert error_of(await client.post(f"{PATH}/{made['id']}/items", json={"items": large}), 400)["param"] == "items"
        assert await roles(client, made["id"]) == []
