"""/v1/tools: what tenants register, what the operator has, and who sees what of it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from redis import Redis

from engine.text.model import TextModel
from gateway.app import create_app
from tests.extensions.tools.service import Service
from tests.fakes import ScriptedEngine, make_settings
from tests.gateway.tools.conftest import city_tool, client_of
from tests.gateway.tools.saying import call, says_in_turn
from tests.gateway.wire import Body, chat, error_of, whole

SECRET = "Bearer s3cret"
MINE: Body = city_tool("mine", "https://api.example.com/{city}", description="Mine.", effect="pure") | {
    "http": {"url": "https://api.example.com/{city}", "headers": {"Authorization": SECRET}}
}
SCRIPT: Body = {
    "name": "double",
    "kind": "script",
    "effect": "pure",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    "script": {"source": "async def main(request, lm):\n    return {'twice': 2 * request.args['n']}\n"},
}


async def add(client: httpx.AsyncClient, tool: Body) -> Body:
    answer = await client.post("/v1/tools", json=tool)
    assert answer.status_code == 200, answer.text
    made: Body = answer.json()
    return made


async def names(client: httpx.AsyncClient) -> list[str]:
    return [one["id"] for one in (await client.get("/v1/tools", params={"limit": 100})).json()["data"]]


async def test_a_tool_is_registered_listed_read_replaced_and_forgotten(client: httpx.AsyncClient) -> None:
    made = await add(client, MINE)
    assert (made["id"], made["kind"], made["owned_by"], made["effect"]) == ("mine", "http", "user", "pure")
    assert made["http"] == {"url": "https://api.example.com/{city}", "headers": {"Authorization": "***"}}
    assert (await client.get("/v1/tools/mine")).json() == made
    assert "mine" in await names(client)
    await add(client, {**MINE, "description": "Better."})
    assert (await client.get("/v1/tools/mine")).json()["description"] == "Better."
    assert (await client.delete("/v1/tools/mine")).json() == {"id": "mine", "object": "tool.deleted", "deleted": True}
    error = error_of(await client.get("/v1/tools/mine"), 404)
    assert (error["code"], error["param"]) == ("tool_not_found", "tool_id")
    assert error_of(await client.delete("/v1/tools/mine"), 404)["param"] == "tool_id"


async def test_a_secret_is_told_to_nobody(client: httpx.AsyncClient) -> None:
    answers = [await client.post("/v1/tools", json=MINE), await client.get("/v1/tools/mine")]
    answers.append(await client.get("/v1/tools"))
    server = {"label": "mine2", "url": "https://api.example.com/mcp", "headers": {"X-Key": SECRET}}
    answers += [await client.post("/v1/tools", json=server), await client.get("/v1/tools")]
    assert all(answer.status_code == 200 for answer in answers)
    assert not any("s3cret" in answer.text for answer in answers)


async def test_one_tenant_sees_nothing_of_another(client: httpx.AsyncClient, stranger: httpx.AsyncClient) -> None:
    await add(client, MINE)
    assert "mine" not in await names(stranger)
    error_of(await stranger.get("/v1/tools/mine"), 404)
    error_of(await stranger.delete("/v1/tools/mine"), 404)
    error_of(await stranger.post("/v1/tools/mine/test", json={"arguments": {"city": "x"}}), 404)
    error = error_of(await stranger.post("/v1/chat/completions", json=chat(server_tools=["mine"])), 400)
    assert (error["param"], error["code"]) == ("server_tools[0]", "tool_not_found")
    assert "mine" in await names(client)


async def test_of_the_operators_tools_one_sees_what_they_do_and_not_where_they_are(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/tools", params={"limit": 100})).json()["data"]
    assert [one["id"] for one in listed] == ["files", "guarded", "late", "order", "slow", "weather"]
    assert {one["owned_by"] for one in listed} == {"operator"}
    assert not any({"http", "server", "url"} & one.keys() for one in listed)
    error = error_of(await client.post("/v1/tools", json={**MINE, "name": "weather"}), 409)
    assert (error["param"], error["code"]) == ("name", "tool_exists")
    error_of(await client.delete("/v1/tools/weather"), 404)


async def test_lists_come_in_pages(client: httpx.AsyncClient) -> None:
    first = (await client.get("/v1/tools", params={"limit": 4})).json()
    assert (first["first_id"], first["last_id"], first["has_more"]) == ("files", "order", True)
    rest = (await client.get("/v1/tools", params={"limit": 4, "after": first["last_id"]})).json()
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (["slow", "weather"], False)


async def test_there_is_room_for_so_many_and_replacing_takes_none(client: httpx.AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await add(client, {**MINE, "name": name})
    error = error_of(await client.post("/v1/tools", json={**MINE, "name": "d"}), 400)
    assert error["code"] == "tools_full"
    await add(client, {**MINE, "name": "c", "description": "New."})
    await client.delete("/v1/tools/a")
    await add(client, {**MINE, "name": "d"})


async def test_bytes_are_given_back(engine: ScriptedEngine, model: TextModel, redis_url: str) -> None:
    app = create_app(make_settings(redis_url=redis_url, max_tools_bytes=1024), engine=engine, text=model)
    async with client_of(app, "x") as client:
        for _ in range(20):
            await add(client, MINE)
            await client.delete("/v1/tools/mine")
        error = error_of(await client.post("/v1/tools", json={**MINE, "description": "x" * 1024}), 400)
        assert error["code"] == "tools_full"
    await app.state.services.aclose()
    with Redis.from_url(redis_url) as redis:
        assert redis.get("{wye}:ts:") == b"0"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({}, None),
        ({"name": "x"}, None),
        ({"name": "x", "kind": "http"}, "http"),
        ({"name": "no name", "kind": "script", "script": {"source": "x"}}, None),
        ({**MINE, "name": "no name"}, "name"),
        ({**MINE, "kind": "ftp"}, "kind"),
        ({**MINE, "effect": "none"}, "effect"),
        ({**MINE, "timeout_s": 0}, "timeout_s"),
        ({**MINE, "timeout_s": "1"}, "timeout_s"),
        ({**MINE, "timeout": 1}, None),
        ({**MINE, "parameters": {"type": 3}}, "parameters"),
        ({**MINE, "parameters": 3}, "parameters"),
        ({**MINE, "require_approval": "maybe"}, None),
        ({**MINE, "require_approval": {"always": ["x"]}}, "require_approval"),
        ({**MINE, "is_trusted": True}, "is_trusted"),
        ({**MINE, "http": {"url": "http://api.example.com/"}}, "http.url"),
        ({**MINE, "http": {"url": "file:///etc/passwd"}}, "http.url"),
        ({**MINE, "http": {"url": "https://u:p@api.example.com/"}}, "http.url"),
        ({**MINE, "http": {"url": "https://a.example/", "headers": {"A": "env:HOME"}}}, "http.headers.A"),
        ({**MINE, "http": {"url": "https://a.example/", "headers": {"A": "b\r\nc"}}}, "http.headers.A"),
        ({"label": "x", "command": ["sh"]}, "command"),
        ({"label": "x", "url": "https://a.example/", "env": {"A": "b"}}, "env"),
        ({"label": "wye", "url": "https://a.example/mcp"}, "label"),
        ({"label": "x", "url": "https://a.example/mcp", "require_approval": {"never": "x"}}, None),
        (
            {**SCRIPT, "script": {"source": "async def main(request, lm):\n    return request.nothing\n"}},
            "script.source",
        ),
    ],
)
async def test_a_wrong_description_is_refused(client: httpx.AsyncClient, tool: Body, param: str | None) -> None:
    answer = await client.post("/v1/tools", json=tool)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert param is None or error["param"] == param, error
    assert "mine" not in await names(client)


@pytest.mark.parametrize(
    "url",
    ["https://127.0.0.1/", "https://[::1]/", "https://10.0.0.1/x", "https://169.254.169.254/latest/meta-data/"],
)
async def test_a_tenants_tool_does_not_reach_what_is_inside(client: httpx.AsyncClient, url: str) -> None:
    await add(client, {"name": "inside", "kind": "http", "http": {"url": url}})
    error = error_of(await client.post("/v1/tools/inside/test", json={}), 403)
    assert error["code"] == "egress_denied"
    await add(client, {"label": "insider", "url": url})
    error = error_of(await client.post("/v1/tools/insider/test", json={}), 403)
    assert error["code"] == "egress_denied"


@pytest.mark.parametrize(("keys", "is_told"), [(("ann", "bob"), False), (("ann",), True)])
async def test_what_a_name_stands_for_inside_is_told_to_the_operator_alone(
    engine: ScriptedEngine, model: TextModel, redis_url: str, keys: tuple[str, ...], is_told: bool
) -> None:
    app = create_app(make_settings(redis_url=redis_url, api_keys=keys), engine=engine, text=model)
    async with client_of(app, "ann") as client:
        await add(client, {"name": "inside", "kind": "http", "http": {"url": "https://localhost/"}})
        error = error_of(await client.post("/v1/tools/inside/test", json={}), 403)
    await app.state.services.aclose()
    assert error["message"].startswith("localhost is at ")
    assert ("127.0.0.1" in error["message"] or "::1" in error["message"]) == is_told


async def test_a_tool_is_tested_by_a_call(client: httpx.AsyncClient, service: Service) -> None:
    tested = (await client.post("/v1/tools/weather/test", json={"arguments": {"city": "Oslo"}})).json()
    assert (tested["output"], tested["is_error"]) == ('{"city":"Oslo","degrees":21}', False)
    error = error_of(await client.post("/v1/tools/weather/test", json={}), 400)
    assert error["param"] == "arguments"
    error = error_of(await client.post("/v1/tools/late/test", json={"arguments": {"city": "x"}}), 424)
    assert (error["code"], error["type"]) == ("tool_outcome_unknown", "external_connector_error")


async def test_a_server_is_tested_by_its_list_and_by_calls(client: httpx.AsyncClient) -> None:
    listed = (await client.post("/v1/tools/files/test", json={})).json()
    assert {"add", "read"} <= {tool["name"] for tool in listed["tools"]}
    called = (await client.post("/v1/tools/files/test", json={"tool": "add", "arguments": {"a": 1, "b": 2}})).json()
    assert (called["output"], called["tools"]) == ("3", None)
    error_of(await client.post("/v1/tools/files/test", json={"tool": "nothing"}), 404)


async def test_a_server_that_is_not_there_is_told_before_any_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, app: FastAPI
) -> None:
    await add(client, {"label": "gone", "url": "https://nothing.invalid/mcp"})
    tool = {"type": "mcp", "server_label": "gone"}
    for body in ({"input": "hi", "tools": [tool]}, {"input": "hi", "tools": [tool], "stream": True}):
        error = error_of(await client.post("/v1/responses", json=body), 424)
        assert error["code"] == "tool_failed"
    assert engine.requests == []


async def test_without_a_redis_there_are_the_operators_tools_alone(
    engine: ScriptedEngine, model: TextModel, tools_file: Any
) -> None:
    app = create_app(make_settings(tools_file=str(tools_file), tool_format="hermes"), engine=engine, text=model)
    async with client_of(app, "x") as client:
        assert "weather" in await names(client)
        error = error_of(await client.post("/v1/tools", json=MINE), 503)
        assert "WYE_TOOLS_FILE" in error["message"]
        engine.script = says_in_turn(model, call("weather", city="Oslo"), "Sunny.")
        answer = await whole(client, chat(server_tools=["weather"], max_tokens=400))
        assert answer["choices"][0]["message"]["content"] == "Sunny."
    await app.state.services.aclose()


async def test_addresses_that_nobody_registered_are_taken_if_the_operator_says_so(
    engine: ScriptedEngine, model: TextModel, redis_url: str
) -> None:
    app = create_app(make_settings(redis_url=redis_url, adhoc_tool_servers=True), engine=engine, text=model)
    async with client_of(app, "x") as client:
        for url, status in (("https://127.0.0.1/mcp", 403), ("http://a.example/mcp", 400)):
            tool = {"type": "mcp", "server_label": "any", "server_url": url}
            error = error_of(await client.post("/v1/responses", json={"input": "hi", "tools": [tool]}), status)
            assert status == 403 or error["param"] == "tools[0].server_url"
    await app.state.services.aclose()


async def test_a_tool_may_be_a_program(client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel) -> None:
    made = await add(client, SCRIPT)
    assert made["script"] == SCRIPT["script"]
    engine.script = says_in_turn(model, call("double", n=21), "It is 42.")
    message = (await whole(client, chat(server_tools=["double"], max_tokens=400)))["choices"][0]["message"]
    assert message["server_tool_calls"][0]["output"] == '{"twice": 42}'
