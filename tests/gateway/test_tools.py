"""Calls and thinking as clients see them: streamed and whole, in exact tokens of a scripted engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken

from engine.text.chat_template import ChatTemplate
from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from tests.engine.text.vocabularies import byte_level
from tests.fakes import ScriptedEngine, says, scripted_client, text_model
from tests.gateway.test_messages import CALL, TOOL, prompt_of, user
from tests.gateway.wire import chat, endings, refused, stream, whole

TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [TOOL, TIME]
ARGUMENTS = '{"city": "Oslo", "days": 42}'
MARKED = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": Oslo}}\n</tool_call>'


def message_of(parts: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The message that a client puts together; checks that ids, types, names and the role come once."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for choice in (choice for part in parts for choice in part["choices"] if choice["index"] == index):
        delta = choice["delta"]
        if "role" in delta:
            assert "role" not in message
            message["role"] = delta["role"]
        message["content"] += delta.get("content", "")
        for name in ("reasoning", "reasoning_content"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call.keys() == {"index", "id", "type", "function"}
                message["tool_calls"].append({"type": call["type"], "id": call["id"], "function": call["function"]})
            else:
                assert call.keys() == {"index", "function"}
                assert call["function"].keys() == {"arguments"}
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


async def both(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The message and finish reason of a request, which must be the same streamed and whole."""
    parts = await stream(client, body)
    streamed = message_of(parts)
    choice = (await whole(client, body))["choices"][0]
    message = choice["message"]
    assert endings(parts) == [choice["finish_reason"]]
    assert streamed["content"] == (message["content"] or "")
    assert [call["function"] for call in streamed["tool_calls"]] == [
        call["function"] for call in message.get("tool_calls", [])
    ]
    assert streamed.get("reasoning") == message.get("reasoning")
    assert streamed.get("reasoning_content") == message.get("reasoning_content")
    return message, choice["finish_reason"]


@pytest.mark.parametrize("per_event", [1, 3, 7, 100])
@pytest.mark.parametrize("said", [MARKED, f"```json\n{MARKED[12:-13]}\n```", MARKED[12:-13]])
async def test_a_call_is_given_as_a_call_and_its_markers_to_nobody(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, said: str, per_event: int
) -> None:
    engine.script = says(model, said, per_event=per_event)
    message, reason = await both(client, chat(tools=TOOLS, max_tokens=500))
    assert message["content"] is None
    assert reason == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}


async def test_two_calls_after_some_text_have_ids_of_their_own(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, f'I look.\n{MARKED}\n<tool_call>{{"name": "get_time"}}</tool_call>')
    message, reason = await both(client, chat(tools=TOOLS, max_tokens=500))
    assert (message["content"], reason) == ("I look.", "tool_calls")
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_weather", "get_time"]
    assert message["tool_calls"][0]["id"] != message["tool_calls"][1]["id"]


@pytest.mark.parametrize("per_event", [1, 100])
async def test_a_broken_call_is_given_back_as_text(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, per_event: int
) -> None:
    engine.script = says(model, BROKEN, per_event=per_event)
    message, reason = await both(client, chat(tools=TOOLS, max_tokens=500))
    assert (message["content"], reason) == (BROKEN, "stop")
    assert "tool_calls" not in message


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_without_tools_calls_are_text(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, fields: dict[str, Any]
) -> None:
    engine.script = says(model, MARKED)
    message, reason = await both(client, chat(**fields, max_tokens=500))
    assert (message["content"], reason) == (MARKED, "stop")


async def test_a_call_that_was_cut_ends_with_length(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    num_tokens = len(model.tokenizer.encode(MARKED[:-20], add_special=False))
    engine.script = says(model, MARKED)
    message, reason = await both(client, chat(tools=TOOLS, max_tokens=num_tokens))
    assert reason == "length"
    assert ARGUMENTS.startswith(message["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("per_event", [1, 100])
async def test_g_27_without_parallel_calls_the_first_one_ends_the_answer(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, per_event: int
) -> None:
    engine.script = says(model, MARKED + "\n" + MARKED + "x" * 50, per_event=per_event)
    body = chat(tools=TOOLS, parallel_tool_calls=False, max_tokens=900)
    message, reason = await both(client, body)
    assert (len(message["tool_calls"]), reason) == (1, "tool_calls")
    usage = (await whole(client, body))["usage"]
    assert usage["completion_tokens"] <= len(model.tokenizer.encode(MARKED, add_special=False))
    assert not engine.streams


async def test_every_answer_of_several_has_its_own_calls(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    called, said = (model.tokenizer.encode(words, add_special=False) for words in (MARKED, "No."))
    engine.script = lambda request, index: [[token] for token in (called, said)[index]]
    parts = await stream(client, chat(tools=TOOLS, n=2, max_tokens=500))
    assert [endings(parts, index) for index in (0, 1)] == [["tool_calls"], ["stop"]]
    assert message_of(parts, 1) == {"role": "assistant", "content": "No.", "tool_calls": []}


async def test_log_probabilities_are_those_of_content_alone(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, f"<think>\nhm\n</think>\n\nI look, 🙂.\n{MARKED}\nDone")
    body = chat(tools=TOOLS, logprobs=True, max_tokens=500)
    choice = (await whole(client, body))["choices"][0]
    entries = choice["logprobs"]["content"]
    parts = await stream(client, body)
    streamed = [part["choices"][0] for part in parts if part["choices"]]
    for one in streamed:
        assert (one["logprobs"] is None) == (not one["delta"].get("content"))
    assert [entry for one in streamed for entry in (one["logprobs"] or {"content": []})["content"]] == entries
    data = bytes(byte for entry in entries for byte in entry["bytes"]).decode()
    # A token that ends in the space around a call may bring that with it.
    assert data.replace("\n", "") == choice["message"]["content"] == "I look, 🙂.Done"


@pytest.mark.parametrize("per_event", [1, 2, 100])
async def test_thinking_is_told_from_the_answer(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, per_event: int
) -> None:
    thought = "<think>\nPlan: one\n</think>\n\n"
    engine.script = says(model, thought + "Plan done", per_event=per_event)
    message, reason = await both(client, chat(max_tokens=200))
    assert (message["content"], reason) == ("Plan done", "stop")
    assert message["reasoning_content"] == message["reasoning"] == "Plan: one"
    usage = (await whole(client, chat(max_tokens=200)))["usage"]
    num_thought = len(model.tokenizer.encode(thought, add_special=False))
    assert abs(usage["completion_tokens_details"]["reasoning_tokens"] - num_thought) <= 1
    parts = await stream(client, chat(max_tokens=200, stream_options={"include_usage": True}))
    assert parts[-1]["usage"] == usage


@pytest.mark.parametrize("per_event", [1, 100])
async def test_g_18_stop_strings_count_in_the_answer_alone(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, per_event: int
) -> None:
    engine.script = says(model, "<think>Plan: one</think>Plan done. Plan: two", per_event=per_event)
    message, reason = await both(client, chat(stop=["Plan:"], max_tokens=200))
    assert (message["content"], message["reasoning"], reason) == ("Plan done. ", "Plan: one", "stop")


@pytest.mark.parametrize("said", ["<", "<b", "a<", "<th"])
async def test_a_stop_string_that_begins_like_a_marker_is_found(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, said: str
) -> None:
    engine.script = says(model, said)
    message, _ = await both(client, chat(stop=["<"], max_tokens=200))
    assert message["content"] == said.partition("<")[0]


@pytest.mark.parametrize(
    ("fields", "content", "thought"),
    [
        ({"include_reasoning": False}, "Hi", None),
        ({"separate_reasoning": False}, "<think>hm</think>\n\nHi", None),
        ({}, "Hi", "hm"),
    ],
)
async def test_a_client_says_where_thinking_goes(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    model: TextModel,
    fields: dict[str, Any],
    content: str,
    thought: str | None,
) -> None:
    engine.script = says(model, "<think>hm</think>\n\nHi")
    message, _ = await both(client, chat(**fields))
    assert (message["content"], message.get("reasoning")) == (content, thought)


@pytest.mark.parametrize("per_event", [1, 2, 100])
@pytest.mark.parametrize("said", ["<think>hm, hm</think>Hi", "<think>hm, hm", "Hi", f"<think>hm, hm</think>{MARKED}"])
async def test_thinking_comes_in_one_piece_on_request(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, said: str, per_event: int
) -> None:
    engine.script = says(model, said, per_event=per_event)
    body = chat(stream_reasoning=False, tools=TOOLS, max_tokens=200)
    await both(client, body)
    deltas = [choice["delta"] for part in await stream(client, body) for choice in part["choices"]]
    thoughts = [delta["reasoning"] for delta in deltas if "reasoning" in delta]
    assert thoughts == (["hm, hm"] if "<think>" in said else [])
    assert (await both(client, {**body, "stream_reasoning": True}))[0].get("reasoning", "") == "".join(thoughts)


async def test_settings_choose_markers_and_names(engine: ScriptedEngine, model: TextModel) -> None:
    engine.script = says(model, "[THINK]hm[/THINK][TOOL_CALLS]get_time{}")
    settings = {"tool_format": "mistral", "reasoning_format": "mistral", "reasoning_fields": ["reasoning"]}
    async with scripted_client(engine, model, **settings) as client:
        message, reason = await both(client, chat(tools=TOOLS, max_tokens=200))
    assert (message["reasoning"], reason) == ("hm", "tool_calls")
    assert "reasoning_content" not in message
    assert len(message["tool_calls"][0]["id"]) == 9


async def test_tokens_are_counted_in_the_format_that_settings_choose() -> None:
    model = text_model(template="{% for message in messages %}{{ message.content }}\n{% endfor %}")
    engine = ScriptedEngine(model, says(model, "x"))
    body = {
        "messages": [user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [CALL]}],
        "tools": TOOLS,
    }
    counted = {}
    for tool_format in ("hermes", "mistral"):
        async with scripted_client(engine, model, tool_format=tool_format) as client:
            counted[tool_format] = (await client.post("/tokenize", json=body)).json()["tokens"]
            rendered = await client.post("/v1/chat/completions/render", json=body)
            assert rendered.json()["token_ids"] == counted[tool_format]
    assert counted["hermes"] != counted["mistral"]


async def test_markers_that_are_special_tokens_are_seen() -> None:
    library = byte_level()
    library.add_special_tokens(
        [AddedToken(text, special=True) for text in ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")]
    )
    model = TextModel(
        path=Path("tiny"),
        tokenizer=Tokenizer(library),
        chat_template=ChatTemplate("{{ messages[0].content }}{{ tools }}{# tool_calls [TOOL_CALLS] [THINK][/THINK] #}"),
    )
    engine = ScriptedEngine(model, says(model, "[THINK]hm[/THINK]<|begin|>[TOOL_CALLS]get_time[ARGS]{}"))
    async with scripted_client(engine, model) as client:
        message, reason = await both(client, chat(tools=TOOLS))
    assert (message["content"], message["reasoning"], reason) == (None, "hm", "tool_calls")
    assert message["tool_calls"][0]["function"] == {"name": "get_time", "arguments": "{}"}


async def test_thinking_is_open_where_the_template_opened_it() -> None:
    model = text_model(template="{{ messages[0].content }}{% if enable_thinking is not false %}<think>\n{% endif %}")
    engine = ScriptedEngine(model, says(model, "hm</think>Hi"))
    async with scripted_client(engine, model) as client:
        message, _ = await both(client, chat())
        assert (message["reasoning"], message["content"]) == ("hm", "Hi")
        engine.script = says(model, "Hi")
        message, _ = await both(client, chat(reasoning_effort="none"))
        assert (message.get("reasoning"), message["content"]) == (None, "Hi")


BARE_TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


async def test_tools_reach_a_model_whose_template_knows_none() -> None:
    model = text_model(template=BARE_TEMPLATE)
    engine = ScriptedEngine(model, says(model, "Hi"))
    history = [
        {"role": "system", "content": "Be brief."},
        user("w?"),
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    async with scripted_client(engine, model) as client:
        await whole(client, chat(messages=history, tools=TOOLS))
        prompt = prompt_of(engine, model)
        await whole(client, chat(tools=TOOLS))
        alone = prompt_of(engine, model)
    assert prompt.startswith("[system]Be brief.\n\nYou can call these functions:\n")
    assert json.dumps(TOOL) in prompt
    written = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
    results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"
    assert prompt.endswith(f"[assistant]{written}\n{written}[user]{results}")
    assert alone.startswith("[system]You can call")


async def test_ids_are_made_short_for_templates_that_demand_it() -> None:
    source = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id|length != 9 %}{{ raise_exception('id') }}{% endif %}{{ c.id }} {% endfor %}{{ m.tool_call_id }}{% endfor %}"  # fmt: skip  # noqa: E501
    model = text_model(template=source)
    engine = ScriptedEngine(model, says(model, "Hi"))
    history = [
        user("w?"),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
    ]
    async with scripted_client(engine, model) as client:
        await whole(client, chat(messages=history))
    called, answered = prompt_of(engine, model).split()
    assert called == answered


async def test_allowed_tools_are_those_the_model_is_told_of(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel
) -> None:
    engine.script = says(model, MARKED)
    listed = [{"type": "function", "function": {"name": "get_time"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": listed}}
    message, reason = await both(client, chat(tools=TOOLS, tool_choice=choice, max_tokens=500))
    assert (message["content"], reason) == (MARKED, "stop")
    assert "get_weather" not in prompt_of(engine, model)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "allowed_tools": 5}, "tool_choice.allowed_tools"),
        ({"type": "allowed_tools", "allowed_tools": {"tools": []}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "mode": "always", "tools": [TIME]}, "tool_choice.mode"),
        ({"type": "allowed_tools", "tools": [{"type": "mcp"}]}, "tool_choice.tools[0].type"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": 5}]}, "tool_choice.tools[0].name"),
        ({"type": "function", "name": None}, "tool_choice.name"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "nope"}]}, "tool_choice.tools"),
        ({"type": "function"}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": "nope"}}, "tool_choice"),
    ],
)
async def test_a_choice_that_is_none_is_refused_by_its_path(
    client: httpx.AsyncClient, choice: dict[str, Any], param: str
) -> None:
    await refused(client, chat(tools=TOOLS, tool_choice=choice), param=param)


@pytest.mark.parametrize("name", ["☂", "a.b", "x" * 65, "", "get_weather\n"])
async def test_a_name_that_no_function_can_have_is_refused(client: httpx.AsyncClient, name: str) -> None:
    await refused(
        client, chat(tools=[{"type": "function", "function": {"name": name}}]), param="tools[0].function.name"
    )


async def test_many_tools_are_taken(model: TextModel) -> None:
    many = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(256)]
    engine = ScriptedEngine(model, says(model, '{"name": "f255", "arguments": {}}'), max_model_len=32_768)
    async with scripted_client(engine, model) as client:
        message, _ = await both(client, chat(tools=many, max_tokens=200))
    assert message["tool_calls"][0]["function"]["name"] == "f255"
