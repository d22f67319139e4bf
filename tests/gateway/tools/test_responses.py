"""Responses that call tools of MCP servers: items, events, approvals, limits."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from tests.extensions.tools.mcp_server import Server
from tests.extensions.tools.service import Service
from tests.fakes import ScriptedEngine
from tests.gateway.responses.wire import create, get, kinds, refuse, replay, stream, text_of
from tests.gateway.tools.saying import call, prompts, says_in_turn
from tests.gateway.wire import Body

ADD = call("add", a=2, b=3)
ORDER = call("order", city="Oslo")


def files(**fields: Any) -> Body:
    return {"type": "mcp", "server_label": "files", "require_approval": "never", **fields}


def own(**fields: Any) -> Body:
    return {"type": "mcp", "server_label": "wye", **fields}


def items_of(response: Body, kind: str) -> list[Body]:
    return [item for item in response["output"] if item["type"] == kind]


async def test_a_response_lists_the_tools_calls_them_and_answers(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, mcp: Server
) -> None:
    engine.script = says_in_turn(model, ADD, "It is 5.")
    made = await create(client, tools=[files(allowed_tools=["add", "read"])])
    assert [item["type"] for item in made["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    listed, called, _ = made["output"]
    assert [tool["name"] for tool in listed["tools"]] == ["add", "read"]
    assert listed["tools"][0]["input_schema"]["properties"].keys() == {"a", "b"}
    assert (called["name"], called["server_label"], called["status"]) == ("add", "files", "completed")
    assert (json.loads(called["arguments"]), called["output"], called["error"]) == ({"a": 2, "b": 3}, "5", None)
    assert text_of(made) == "It is 5."
    assert made["status"] == "completed"
    assert [one[:2] for one in mcp.calls] == [("add", {"a": 2, "b": 3})]
    assert made["usage"]["input_tokens"] == sum(len(one.prompt_ids) for one in engine.requests)


async def test_the_stream_has_every_event_in_order_and_ends_with_the_same_object(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, f"Let me see. {ADD}", "It is 5.")
    events = await stream(client, tools=[files(allowed_tools=["add"])])
    told = [event["type"].removeprefix("response.") for event in events]
    text = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done"]
    assert kinds(events) == [
        "created",
        "in_progress",
        *("output_item.added", "mcp_list_tools.in_progress", "mcp_list_tools.completed", "output_item.done"),
        *(*text, "content_part.done", "output_item.done"),
        *("output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done"),
        *("mcp_call.completed", "output_item.done"),
        *(*text, "content_part.done", "output_item.done"),
        "completed",
    ], told
    final = events[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["mcp_list_tools", "message", "mcp_call", "message"]
    for event in events:
        if event["type"] == "response.output_item.done":
            assert event["item"] == final["output"][event["output_index"]]
        if "item_id" in event:
            assert event["item_id"] == final["output"][event["output_index"]]["id"]
    pieces = [event["delta"] for event in events if event["type"] == "response.mcp_call_arguments.delta"]
    assert "".join(pieces) == final["output"][2]["arguments"]
    assert await replay(client, final["id"]) == events
    assert await get(client, f"responses/{final['id']}") == final


async def test_calls_made_at_once_keep_their_places(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, "\n".join((ADD, call("read", path="b"), ADD)), "Done.")
    final = (await stream(client, tools=[files()]))[-1]["response"]
    assert [item["output"] for item in items_of(final, "mcp_call")] == ["5", "contents of b", "5"]
    assert [item["type"] for item in final["output"]][-1] == "message"


async def test_what_was_called_is_history_and_tools_are_listed_once(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, call("read", path="a"), "Read.", "Yes.")
    first = await create(client, tools=[files()])
    second = await create(client, tools=[files()], input="Sure?", previous_response_id=first["id"])
    assert items_of(second, "mcp_list_tools") == []
    last = prompts(engine, model)[-1]
    assert last.index("contents of a") < last.index("Read.") < last.index("Sure?")
    replayed = [{"role": "user", "content": "hi"}, *first["output"], {"role": "user", "content": "Sure?"}]
    await create(client, tools=[files()], input=replayed, store=False)
    assert prompts(engine, model)[-1] == last


async def test_a_call_waits_for_a_persons_yes_and_is_made_once(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, service: Service
) -> None:
    engine.script = says_in_turn(model, ORDER, "Ordered.")
    first = await create(client, tools=[own()])
    assert [item["type"] for item in first["output"]] == ["mcp_list_tools", "mcp_approval_request"]
    asked = first["output"][-1]
    assert (asked["name"], asked["server_label"]) == ("order", "wye")
    assert service.calls == []
    yes = [{"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}]
    second = await create(client, tools=[own()], input=yes, previous_response_id=first["id"])
    assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]
    called = second["output"][0]
    assert (called["approval_request_id"], called["status"]) == (asked["id"], "completed")
    assert json.loads(called["arguments"]) == {"city": "Oslo"}
    assert text_of(second) == "Ordered."
    assert '"given":{"city":"Oslo"}' in prompts(engine, model)[-1]
    # The same yes once more, as of a client that did not get the answer: the call is not made again.
    engine.script = says_in_turn(model, "Ordered before.")
    events = await stream(client, tools=[own()], input=yes, previous_response_id=first["id"])
    again = events[-1]["response"]["output"][0]
    assert again["output"] == called["output"]
    assert len(service.calls) == 1
    told = [event["type"] for event in events if event["type"].startswith("response.mcp_call")]
    assert told == [
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]


async def test_a_no_is_told_to_the_model(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, service: Service
) -> None:
    engine.script = says_in_turn(model, ORDER, "As you wish.")
    first = await create(client, tools=[own()])
    asked = first["output"][-1]["id"]
    no = [{"type": "mcp_approval_response", "approval_request_id": asked, "approve": False, "reason": "too dear"}]
    second = await create(client, tools=[own()], input=no, previous_response_id=first["id"])
    assert [item["type"] for item in second["output"]] == ["message"]
    assert "the user did not allow this call: too dear" in prompts(engine, model)[-1]
    assert service.calls == []
    yes = [{"type": "mcp_approval_response", "approval_request_id": asked, "approve": True}]
    error = await refuse(client, input=yes, previous_response_id=first["id"], param="tools")
    assert "input[0]" in error["message"]
    await refuse(
        client,
        param="input[0].approval_request_id",
        tools=[own()],
        input=yes,
        previous_response_id=second["id"],
    )


@pytest.mark.parametrize(
    ("asked", "approval", "waits"),
    [
        ("weather", None, False),
        ("weather", "always", True),
        ("weather", {"always": {"tool_names": ["weather"]}}, True),
        ("weather", {"never": {"read_only": True}}, False),
        ("order", None, True),
        ("order", "never", False),
        ("order", {"never": {"tool_names": ["order"]}}, False),
        ("order", {"never": {"tool_names": ["weather"]}}, True),
        ("guarded", "never", True),
    ],
)
async def test_who_is_asked_goes_by_the_tool_the_request_and_the_operator(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, asked: str, approval: object, waits: bool
) -> None:
    engine.script = says_in_turn(model, call(asked, city="Oslo"), "Done.")
    tool = own() if approval is None else own(require_approval=approval)
    made = await create(client, tools=[tool])
    assert bool(items_of(made, "mcp_approval_request")) == waits
    assert bool(items_of(made, "mcp_call")) != waits


async def test_functions_of_the_client_end_the_turn_beside_tools_of_a_server(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, ADD + "\n" + call("mine"))
    mine = {"type": "function", "name": "mine", "parameters": {"type": "object", "properties": {}}}
    events = await stream(client, tools=[mine, files()])
    made = events[-1]["response"]
    assert [item["type"] for item in made["output"]] == ["mcp_list_tools", "mcp_call", "function_call"]
    assert made["output"][1]["status"] == "completed"
    engine.script = says_in_turn(model, "So it is 5.")
    output = [{"type": "function_call_output", "call_id": made["output"][2]["call_id"], "output": "ok"}]
    await create(client, tools=[mine, files()], input=output, previous_response_id=made["id"])
    assert prompts(engine, model)[-1].count("add(") == 1


async def test_too_many_calls_leave_the_response_incomplete(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, mcp: Server
) -> None:
    engine.script = says_in_turn(model, ADD)
    for is_streamed in (False, True):
        fields: Body = {"tools": [files()], "max_tool_calls": 1}
        made = (await stream(client, **fields))[-1]["response"] if is_streamed else await create(client, **fields)
        assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_tool_calls"})
        assert [item["status"] for item in items_of(made, "mcp_call")] == ["completed", "incomplete"]
    assert len(mcp.calls) == 2


@pytest.mark.parametrize(
    ("said", "kind", "status"),
    [
        (call("fail"), "mcp_tool_execution_error", "failed"),
        (call("add", a="x"), "mcp_protocol_error", "failed"),
    ],
)
async def test_a_failed_call_says_how_in_openais_words(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, said: str, kind: str, status: str
) -> None:
    engine.script = says_in_turn(model, said, "Sorry.")
    events = await stream(client, tools=[files()])
    (called,) = items_of(events[-1]["response"], "mcp_call")
    assert (called["error"]["type"], called["status"]) == (kind, status)
    assert "response.mcp_call.failed" in [event["type"] for event in events]
    assert text_of(events[-1]["response"]) == "Sorry."


async def test_a_tool_choice_may_name_a_server(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, '{"name": "add", "arguments": {"a": 2, "b": 3}}', "It is 5.")
    choice = {"type": "mcp", "server_label": "files", "name": "add"}
    made = await create(client, tools=[files()], tool_choice=choice)
    assert items_of(made, "mcp_call")[0]["output"] == "5"
    assert made["tool_choice"] == choice
    assert [one.constraint is not None for one in engine.requests] == [True, False]


@pytest.mark.parametrize(
    ("tool", "chosen", "said"),
    [
        (own(allowed_tools=["celsius"]), own(name="celsius"), "There is no tool 'celsius' on this server; register it"),
        (own(), own(name="celsius"), "There is no tool 'celsius' on this server; register it first"),
        (files(allowed_tools=["celsius"]), files(name="celsius"), "The server 'files' has no tool 'celsius'."),
        (files(allowed_tools=["add"]), files(name="read"), "'tool_choice' names 'read' of 'files', which is not among"),
        (files(), own(name="celsius"), "'tool_choice' names 'celsius' of 'wye', which is not among the tools of this"),
    ],
)
async def test_a_tool_choice_of_a_tool_that_is_not_there_says_what_is_missing(
    client: httpx.AsyncClient, engine: ScriptedEngine, tool: Body, chosen: Body, said: str
) -> None:
    choice = {key: chosen[key] for key in ("type", "server_label", "name")}
    answer = await client.post(
        "/v1/responses", json={"input": "hi", "model": "org/tiny", "tools": [tool], "tool_choice": choice}
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "tool_choice")
    assert error["message"].startswith(said)
    assert error["code"] == (None if "not among" in said else "tool_not_found")
    assert engine.requests == []


async def test_nothing_secret_comes_back(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, mcp_url: str
) -> None:
    engine.script = says_in_turn(model, ADD, "It is 5.")
    tool = files(server_url=mcp_url, authorization="s3cret", headers={"X-Team": "s3cret"})
    answer = await client.post(
        "/v1/responses", json={"input": "hi", "tools": [tool], "model": "org/tiny", "stream": True}
    )
    assert answer.status_code == 200
    assert "s3cret" not in answer.text
    assert "/mcp" not in answer.text


async def test_a_response_in_the_background_calls_tools_too(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says_in_turn(model, ADD, "It is 5.")
    made = await create(client, tools=[files()], background=True)
    events = await replay(client, made["id"])
    assert text_of(events[-1]["response"]) == "It is 5."
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_tokens_of_the_servers_tools_are_counted(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    body = {"input": "hi", "model": "org/tiny", "tools": [files()]}
    counted = (await client.post("/v1/responses/input_tokens", json=body)).json()["input_tokens"]
    await create(client, tools=[files()])
    assert counted == len(engine.last.prompt_ids)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [own(server_label="nothing")]}, "tools[0].server_label"),
        ({"tools": [own(server_label="weather")]}, "tools[0].server_label"),
        ({"tools": [own(server_label="other", server_url="https://a.example/mcp")]}, "tools[0].server_label"),
        ({"tools": [files(server_url="https://a.example/mcp")]}, "tools[0].server_url"),
        ({"tools": [files(), files()]}, "tools[1].server_label"),
        ({"tools": [own(authorization="x")]}, "tools[0]"),
        ({"tools": [files(authorization="x", headers={"authorization": "y"})]}, "tools[0].authorization"),
        ({"tools": [files(headers={"Host": "x"})]}, "tools[0].headers.Host"),
        ({"tools": [files(connector_id="connector_gmail")]}, "tools[0].connector_id"),
        ({"tools": [files(allowed_callers=["programmatic"])]}, "tools[0].allowed_callers"),
        ({"tools": [files(allowed_tools=[1])]}, "tools[0].allowed_tools[0]"),
        ({"tools": [files(allowed_tools={"tool_names": "x"})]}, "tools[0].allowed_tools.tool_names"),
        ({"tools": [files(require_approval="maybe")]}, "tools[0].require_approval"),
        ({"tools": [{"type": "mcp"}]}, "tools[0].server_label"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [files()], "tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
        ({"tools": [files()], "max_tool_calls": 0}, "max_tool_calls"),
        ({"tools": [files()], "extension": {"source": "x"}}, "tools"),
        (
            {"input": [{"type": "mcp_approval_response", "approval_request_id": "x", "approve": True}]},
            "tools",
        ),
        (
            {
                "tools": [files()],
                "input": [
                    {"role": "user", "content": "hi"},
                    {"type": "mcp_approval_response", "approval_request_id": "x", "approve": True},
                ],
            },
            "input[1].approval_request_id",
        ),
        ({"input": [{"type": "mcp_call", "server_label": "a", "name": "b", "arguments": 3}]}, "input[0].arguments"),
    ],
)
async def test_what_cannot_be_is_refused_before_any_work(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: Body, param: str
) -> None:
    await refuse(client, param=param, **fields)
    await refuse(client, param=param, **{**fields, "stream": True})
    assert engine.requests == []
