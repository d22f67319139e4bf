"""Errors of answers whose tools the server runs name the fields that the client sent, whenever they come."""

from __future__ import annotations

import httpx
import pytest

from engine.errors import InvalidRequest
from engine.request import GenerateRequest
from engine.text.model import TextModel
from tests.fakes import Action, ScriptedEngine
from tests.gateway.tools.saying import call, says_in_turn
from tests.gateway.wire import CHAT, Body, chat, error_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.fixture
def asked(engine: ScriptedEngine, model: TextModel) -> list[GenerateRequest]:
    """Requests that reach an engine which refuses the second constraint while it runs."""
    found: list[GenerateRequest] = []
    says = says_in_turn(model, call("weather", city="Oslo"), "It is mild.")

    def script(request: GenerateRequest, index: int) -> list[Action]:
        found.append(request)
        if request.constraint is not None and len(found) > 1:
            return [InvalidRequest("the schema cannot be compiled", request.constraint.param)]
        return list(says(request, index))

    engine.script = script
    return found


async def test_a_form_in_a_response_is_blamed_by_the_responses_name(
    client: httpx.AsyncClient, asked: list[GenerateRequest]
) -> None:
    body: Body = {
        "model": "org/tiny",
        "input": "How is it?",
        "tools": [{"type": "mcp", "server_label": "wye", "allowed_tools": ["weather"]}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    }
    error_of(await client.post("/v1/responses", json=body), 400)
    constraints = [one.constraint for one in asked if one.constraint is not None]
    assert constraints
    for constraint in constraints:
        assert not constraint.param.startswith(("response_format", "tools["))
        assert not any(param.startswith("response_format") for param in constraint.schema_params)


async def test_in_a_chat_a_tool_of_the_servers_is_blamed_by_the_field_that_named_it(
    client: httpx.AsyncClient, asked: list[GenerateRequest]
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    await client.post(CHAT, json=chat(server_tools=["weather"], response_format=form))
    constraint = asked[0].constraint
    assert constraint is not None
    assert constraint.param.startswith("response_format")
    assert constraint.schema_params == ("server_tools",)
