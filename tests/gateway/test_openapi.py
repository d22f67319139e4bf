"""The API's description: there, and true."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from gateway.openapi import BODIES
from gateway.schemas.base import WireModel
from tests.fakes import ScriptedEngine, scripted_client
from tests.gateway.wire import error_of

NO_BODY = ("/cancel", "/archive", "/warm", "/evict")


async def description(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.get("/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_the_description_and_its_page_are_there(client: httpx.AsyncClient) -> None:
    assert (await description(client))["info"]["title"] == "Wye"
    page = await client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text


async def test_they_need_a_key_like_all_else_and_say_so(engine: ScriptedEngine, model: TextModel) -> None:
    async with scripted_client(engine, model, api_keys=("k1",)) as client:
        error_of(await client.get("/docs"), 401)
        error_of(await client.get("/openapi.json"), 401)
        client.headers["authorization"] = "Bearer k1"
        found = await description(client)
    assert found["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert found["paths"]["/ready"]["get"]["security"] == []
    assert "security" not in found["paths"]["/v1/models"]["get"]
    assert found["security"] == [{"key": []}]


async def test_every_operation_tells_its_body_and_its_errors(client: httpx.AsyncClient) -> None:
    found = await description(client)
    schemas = found["components"]["schemas"]
    for name in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found)):
        assert name in schemas
    for path, operations in found["paths"].items():
        for verb, operation in operations.items():
            assert operation["responses"].keys() == {"200", "default"}, (path, verb)
            assert ("requestBody" in operation) == (verb in ("post", "patch") and not path.endswith(NO_BODY)), path


async def test_the_two_main_endpoints_answer_whole_or_as_a_stream(client: httpx.AsyncClient) -> None:
    paths = (await description(client))["paths"]
    for path, name in (("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest")):
        operation = paths[path]["post"]
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{name}"}
        assert operation["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}


@pytest.mark.parametrize("body", BODIES)
async def test_every_field_is_told_and_may_be_null_unless_required(
    client: httpx.AsyncClient, body: type[WireModel]
) -> None:
    schema = (await description(client))["components"]["schemas"][body.__name__]
    assert schema["properties"].keys() == body.model_fields.keys()
    assert set(schema.get("required", ())) == {name for name, field in body.model_fields.items() if field.is_required()}
    for name, field in schema["properties"].items():
        assert ({"type": "null"} in field.get("anyOf", ())) == (name not in schema.get("required", ()))
    assert all(name in schema["description"] for name in body.unsupported)


async def test_fields_are_told_as_clients_send_them(client: httpx.AsyncClient) -> None:
    schemas = (await description(client))["components"]["schemas"]
    prompt = schemas["CompletionRequest"]["properties"]["prompt"]["anyOf"]
    assert [form["type"] for form in prompt] == ["string", "array", "array", "array"]
    stop = json.dumps(schemas["ChatRequest"]["properties"]["stop"])
    assert '{"type": "string"}, {"items": {"type": "string"}, "type": "array"}' in stop
    content = json.dumps(schemas["Message"]["properties"]["content"])
    assert all(f'"type": "{kind}"' in content for kind in ("string", "object", "array", "null"))
