"""The official client reads calls and thinking, and what is asked of the engine when a call is demanded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from engine.request import ConstraintKind
from engine.text.model import TextModel
from tests.fakes import MODEL, RunningServer, ScriptedEngine, running_server, says
from tests.gateway.test_messages import TOOL
from tests.gateway.test_tools import ARGUMENTS, MARKED, TOOLS, both
from tests.gateway.wire import chat

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORCED = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'


@pytest.fixture
def server(engine: ScriptedEngine, model: TextModel) -> Iterator[RunningServer]:
    """A real server."""
    with running_server(engine, model) as server:
        yield server


@pytest.fixture
async def sdk(server: RunningServer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k1") as sdk:
        yield sdk


@pytest.mark.parametrize("per_event", [1, 5])
async def test_g_25_the_client_s_helper_puts_a_streamed_call_together(
    sdk: openai.AsyncOpenAI, engine: ScriptedEngine, model: TextModel, per_event: int
) -> None:
    engine.script = says(model, f"<think>hm</think>I look.\n{MARKED}", per_event=per_event)
    tools: Any = TOOLS
    async with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=tools) as stream:
        final = await stream.get_final_completion()
    choice = final.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "I look.")
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name, call.function.arguments) == ("function", "get_weather", ARGUMENTS)
    whole = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools)
    assert whole.choices[0].message.tool_calls is not None
    assert whole.choices[0].message.model_extra is not None
    assert whole.choices[0].message.model_extra["reasoning_content"] == "hm"


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tool_choice": NAMED}, FORCED),
        ({"tool_choice": "required"}, f"[{FORCED}]"),
        ({"tool_choice": "required", "parallel_tool_calls": False}, FORCED),
    ],
)
async def test_g_22_g_24_g_26_a_demanded_call_is_forced_and_streamed_as_it_comes(
    client: httpx.AsyncClient,
    engine: ScriptedEngine,
    model: TextModel,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    said: str,
    size: int,
) -> None:
    monkeypatch.setattr("tests.fakes.validate_request", lambda request, info, num_held=0: None)
    engine.script = says(model, said, per_event=size)
    message, reason = await both(client, chat(tools=TOOLS, **fields, max_tokens=200))
    assert (message["content"], reason) == (None, "tool_calls")
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    constraint = engine.last.constraint
    assert constraint is not None
    assert (constraint.kind, constraint.param) == (ConstraintKind.LARK, "tools")
    assert json.dumps(TOOL["function"]["parameters"])[1:-1] in constraint.source  # type: ignore[index]
    assert ("get_time" in constraint.source) == (fields["tool_choice"] == "required")


@pytest.mark.parametrize("said", ["", "{", '{"name": "get_we', FORCED[:-9]])
async def test_g_23_a_demanded_call_that_is_cut_ends_with_length(
    client: httpx.AsyncClient, engine: ScriptedEngine, model: TextModel, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr("tests.fakes.validate_request", lambda request, info, num_held=0: None)
    engine.script = says(model, FORCED)
    num_tokens = max(len(model.tokenizer.encode(said, add_special=False)), 1)
    message, reason = await both(client, chat(tools=TOOLS, tool_choice="required", max_tokens=num_tokens))
    assert reason == "length"
    assert not message["content"]
