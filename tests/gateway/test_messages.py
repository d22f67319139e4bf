"""Conversations on their way to the template (cases of table G), and tools as context."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.text.model import TextModel
from gateway.schemas.tools import Tool, tool_use
from tests.fakes import ScriptedEngine, repeats, says, scripted_client, text_model
from tests.gateway.wire import chat, joined, refused, stream, whole

PARAMETERS = {"type": "object", "properties": {"city": {"type": ["string", "null"]}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "weather", "parameters": PARAMETERS},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}


def prompt_of(engine: ScriptedEngine, model: TextModel) -> str:
    return model.tokenizer.decode(engine.last.prompt_ids, skip_special=False)


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


async def test_g_53_text_parts_are_the_same_prompt_as_their_lines_joined(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await whole(client, chat(messages=[user(parts)]))
    as_parts = engine.last.prompt_ids
    await whole(client, chat(messages=[user("a\nb")]))
    assert engine.last.prompt_ids == as_parts


async def test_g_54_what_the_template_refuses_is_refused_in_its_words(client: httpx.AsyncClient) -> None:
    error = await refused(client, chat(messages=[user("a"), user("b")]), param="messages")
    assert "roles must alternate" in error["message"]


async def test_g_55_an_empty_assistant_turn_is_taken(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    await whole(client, chat(messages=[user("a"), {"role": "assistant", "content": ""}, user("b")]))
    assert "<|begin|>assistant\n<|end|>" in prompt_of(engine, model)


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
@pytest.mark.parametrize("answer", ["rain", "", None, [{"type": "text", "text": "rain"}]])
async def test_g_29_g_77_a_history_of_calls_is_rendered_whatever_its_content(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, content: dict[str, Any], answer: object
) -> None:
    history = [
        user("w?"),
        {"role": "assistant", "tool_calls": [CALL], **content},
        {"role": "tool", "tool_call_id": "c1", "content": answer},
    ]
    await whole(client, chat(messages=history, tools=[TOOL]))
    prompt = prompt_of(engine, model)
    assert 'get_weather({"city": "Oslo"})' in prompt
    assert f"<|begin|>tool\n{'rain' if answer else ''}<|end|>" in prompt


async def test_arguments_that_are_no_json_are_given_to_the_template_as_text(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{broken"}}
    await whole(client, chat(messages=[user("w?"), {"role": "assistant", "tool_calls": [call]}]))
    assert 'f("{broken")' in prompt_of(engine, model)


async def test_g_82_content_may_be_a_single_part(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    await whole(client, chat(messages=[user({"type": "text", "text": "single"})]))
    assert "user\nsingle<|end|>" in prompt_of(engine, model)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (user(None), "messages[0]"),
        (user(5), "messages[0].content"),
        (user([{"type": "text"}]), "messages[0].content[0].text"),
        (user([{"text": "a"}]), "messages[0].content[0]"),
        (user([{"type": "text", "text": 5}]), "messages[0].content[0].text"),
        (user([5]), "messages[0].content[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": "wizard", "content": "a"}, "messages[0].role"),
        ({"role": "tool", "content": "a"}, "messages[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        ("text", "messages[0]"),
    ],
)
async def test_a_message_that_is_none_is_refused_by_its_path(
    client: httpx.AsyncClient, message: object, param: str
) -> None:
    await refused(client, chat(messages=[message]), param=param)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
    ],
)
async def test_parts_the_model_cannot_take_are_refused_by_name(
    client: httpx.AsyncClient, part: dict[str, object]
) -> None:
    content = [{"type": "text", "text": "look"}, part]
    error = await refused(client, chat(messages=[user(content)]), param="messages[0].content[1]")
    assert str(part["type"]) in error["message"]


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_a_developer_is_a_system_where_the_template_knows_no_developer(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, role: str
) -> None:
    await whole(client, chat(messages=[{"role": role, "content": "be brief"}, user("hi")]))
    assert prompt_of(engine, model).startswith("<|begin|>system\nbe brief<|end|>")


async def test_a_template_that_knows_developers_sees_them() -> None:
    model = text_model(template="{{ messages[0].role }}{# developer #}")
    engine = ScriptedEngine(model, repeats(40))
    async with scripted_client(engine, model) as client:
        await whole(client, chat(messages=[{"role": "developer", "content": "be brief"}]))
    assert prompt_of(engine, model) == "developer"


async def test_the_last_message_is_continued_on_request(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    history = [user("a"), {"role": "assistant", "content": "It is"}]
    await whole(client, chat(messages=history, continue_final_message=True))
    assert prompt_of(engine, model).endswith("<|begin|>assistant\nIt is")
    await whole(client, chat(messages=[user("a")], add_generation_prompt=False))
    assert prompt_of(engine, model).endswith("<|end|>\n")


@pytest.mark.parametrize("n", [1, 2])
async def test_what_is_continued_is_echoed_on_request(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, n: int
) -> None:
    engine.script = says(model, " noon.")
    body = chat(messages=[user("a"), {"role": "assistant", "content": "It is"}], continue_final_message=True, n=n)
    for echo, said in ((True, "It is noon."), (False, " noon.")):
        answer = await whole(client, {**body, "echo": echo})
        assert [choice["message"]["content"] for choice in answer["choices"]] == [said] * n
        parts = await stream(client, {**body, "echo": echo})
        assert [joined(parts, index) for index in range(n)] == [said] * n
    assert (await whole(client, chat(echo=True)))["choices"][0]["message"]["content"] == " noon."


async def test_documents_are_given_to_the_template() -> None:
    model = text_model(template="{% for one in documents %}{{ one.title }};{% endfor %}{{ messages[0].content }}")
    engine = ScriptedEngine(model, repeats(40))
    async with scripted_client(engine, model) as client:
        await whole(client, chat(documents=[{"title": "one"}, {"title": "two"}]))
        assert prompt_of(engine, model) == "one;two;hi"
        await refused(client, chat(documents=["one"]), param="documents[0]")


async def test_template_variables_come_from_the_request() -> None:
    model = text_model(template="{{ mood }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ messages[0].content }}")
    engine = ScriptedEngine(model, repeats(40))
    async with scripted_client(engine, model) as client:
        await whole(client, chat(chat_template_kwargs={"mood": "glad"}, reasoning_effort="none"))
        assert prompt_of(engine, model) == "glad|none|False|hi"
        await whole(client, chat(chat_template_kwargs={"enable_thinking": True}, reasoning_effort="high"))
        assert prompt_of(engine, model) == "|high|True|hi"


async def test_a_model_without_a_template_refuses_chats_and_takes_texts() -> None:
    model = text_model(template=None)
    engine = ScriptedEngine(model, repeats(40))
    async with scripted_client(engine, model) as client:
        await refused(client, chat(), param="messages")


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": [], "tool_choice": "auto"}, {"tool_choice": "none"}])
async def test_g_20_no_tools_are_no_tools(
    client: httpx.AsyncClient, engine: ScriptedEngine, fields: dict[str, Any]
) -> None:
    answer = await whole(client, chat(**fields))
    message = answer["choices"][0]["message"]
    assert "tool_calls" not in message
    with_fields = engine.last.prompt_ids
    await whole(client, chat())
    assert engine.last.prompt_ids == with_fields


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "required"},
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        {"tools": [TOOL], "tool_choice": "sometimes"},
        {"tools": [TOOL], "tool_choice": {"type": "what"}},
    ],
)
@pytest.mark.parametrize("streams", [True, False])
async def test_g_21_g_76_a_choice_without_its_tool_is_refused(
    client: httpx.AsyncClient, fields: dict[str, Any], streams: bool
) -> None:
    await refused(client, chat(**fields, stream=streams), param="tool_choice")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", "get_weather get_time"),
        ({"type": "function", "function": {"name": "get_weather"}}, "get_weather"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]},
            "get_time",
        ),
    ],
)
def test_a_choice_that_demands_a_call_demands_one_of_its_tools(choice: Any, names: str) -> None:
    tools = [Tool.model_validate(TOOL), Tool.model_validate({"type": "function", "function": {"name": "get_time"}})]
    use = tool_use(choice, tools)
    assert use.is_forced
    assert use.names == tuple(names.split())


@pytest.mark.parametrize(("choice", "is_shown"), [(None, True), ("auto", True), ("none", False)])
async def test_tools_are_context_for_the_template_unless_the_choice_is_none(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, choice: str | None, is_shown: bool
) -> None:
    await whole(client, chat(tools=[TOOL], tool_choice=choice))
    shown = json.dumps([TOOL])
    assert (shown in prompt_of(engine, model)) is is_shown


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "web_search"}, "tools[0].type"),
        ({"type": "function"}, "tools[0].function"),
        ({"type": "function", "function": {"name": "has space"}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "x" * 65}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "x", "parameters": "bar"}}, "tools[0].function.parameters"),
    ],
)
async def test_a_tool_that_is_none_is_refused_by_its_path(
    client: httpx.AsyncClient, tool: dict[str, object], param: str
) -> None:
    await refused(client, chat(tools=[tool]), param=param)
