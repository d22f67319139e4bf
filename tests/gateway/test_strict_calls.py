"""Strict tools whose calls nobody demands: text stays free, and arguments of what the model calls match."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from tests.fakes import make_settings
from tests.gateway.test_tools import both
from tests.gateway.wire import chat, refused, stream, whole
from tests.tiny_models import CHAT_TEMPLATE, VOCAB_SIZE, write_tiny_model

MARKER = VOCAB_SIZE
"""The id of `<tool_call>`."""

CITY = {"enum": ["Oslo", "Lima"]}
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": CITY, "days": {"enum": [1, 42]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}

SCHEMA_PARAM = "tools[0].function.parameters"


def tool(name: str = "get_weather", parameters: dict[str, Any] = PARAMETERS, *, strict: bool = True) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


@pytest.fixture(scope="module")
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a token for the marker of calls, which may be a special one."""
    path = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama", vocab_size=VOCAB_SIZE + 32)
    library = Library.from_file(str(path / "tokenizer.json"))
    is_special = getattr(request, "param", True)
    library.add_tokens([AddedToken("<tool_call>", special=is_special, normalized=False)])
    assert library.token_to_id("<tool_call>") == MARKER
    library.save(str(path / "tokenizer.json"))
    settings = json.loads((path / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% if tools %}tools{% endif %}" + CHAT_TEMPLATE  # says nothing of what they are
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    """A real engine that checks its pages whenever it is idle."""
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=96)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest.fixture
async def client(engine: EngineConnection, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app over the real engine."""
    app = create_app(make_settings(), engine=engine, text=TextModel.load(directory))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60) as client:
        yield client


def matches(call: dict[str, Any]) -> bool:
    arguments = json.loads(call["function"]["arguments"])
    return (
        arguments.keys() == {"city", "days"} and arguments["city"] in ("Oslo", "Lima") and arguments["days"] in (1, 42)
    )


@pytest.mark.parametrize("directory", [True, False], ids=["special", "spelled"], indirect=True)
@pytest.mark.parametrize(
    "choice",
    [
        "auto",
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]},
        },
    ],
    ids=["auto", "allowed"],
)
async def test_a_call_that_the_model_begins_matches_its_schema(client: httpx.AsyncClient, choice: Any) -> None:
    asked = {"tools": [tool(), tool("other")], "tool_choice": choice, "parallel_tool_calls": False}
    body = chat(**asked, seed=1, temperature=1.0, max_tokens=160, logit_bias={str(MARKER): 12})
    message, reason = await both(client, body)
    assert reason == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather" or choice == "auto"
    assert matches(call)


async def test_text_is_free_again_behind_a_call_and_more_calls_may_follow(client: httpx.AsyncClient) -> None:
    bias = {str(MARKER): 9}
    body = chat(tools=[tool()], seed=5, temperature=1.0, max_tokens=200, logit_bias=bias, n=2, ignore_eos=True)
    choices = (await whole(client, body))["choices"]
    calls = [call for choice in choices for call in choice["message"].get("tool_calls", [])]
    # The last one of an answer may be cut.
    finished = [call for call in calls if call["function"]["arguments"].endswith("}")]
    assert len(finished) > len(choices)
    assert all(matches(call) for call in finished)
    parts = await stream(client, body)
    fragments: dict[tuple[int, int], str] = {}
    for choice in (choice for part in parts for choice in part["choices"]):
        for call in choice["delta"].get("tool_calls", []):
            at = choice["index"], call["index"]
            fragments[at] = fragments.get(at, "") + call["function"].get("arguments", "")
    assert [fragments[at] for at in sorted(fragments)] == [call["function"]["arguments"] for call in calls]


async def test_text_without_calls_is_what_it_is_without_strict(client: httpx.AsyncClient, directory: Path) -> None:
    tokenizer = TextModel.load(directory).tokenizer
    openers = [at for at in range(MARKER + 1) if set(tokenizer.token_bytes(at)) & set(b"{[<`")]
    body = chat(seed=3, temperature=1.0, max_tokens=40, n=2, logit_bias=dict.fromkeys(map(str, openers), -100))
    free, held = [await whole(client, {**body, "tools": [tool(strict=strict)]}) for strict in (False, True)]
    said = [[choice["message"]["content"] for choice in answer["choices"]] for answer in (free, held)]
    assert said[0] == said[1]
    assert all(said[0])


async def test_stop_strings_end_text_and_not_thinking(client: httpx.AsyncClient) -> None:
    body = chat(
        tools=[tool()], seed=4, temperature=1.0, max_tokens=100, logit_bias={str(MARKER): 12}, stop=["Oslo", "Lima"]
    )
    message, reason = await both(client, body)
    assert "Oslo" not in json.dumps(message)
    assert reason in ("stop", "length")


@pytest.mark.parametrize(
    "keyword", [{"not": {"required": ["x"]}}, {"if": {}, "then": {}}, {"format": "password", "type": "string"}]
)
async def test_a_strict_schema_that_cannot_be_enforced_is_refused_by_its_keyword(
    client: httpx.AsyncClient, keyword: dict[str, Any]
) -> None:
    parameters = {**PARAMETERS, **keyword}
    error = await refused(client, chat(tools=[tool(parameters=parameters)], stream=True), param=SCHEMA_PARAM)
    assert next(iter(keyword)) in error["message"]
    assert "lazy" not in error["message"]  # nothing of the grammar that the client has not written
    await whole(client, chat(tools=[tool(parameters=parameters, strict=False)], max_tokens=4))


async def test_strict_tools_of_responses_are_held_too(client: httpx.AsyncClient) -> None:
    flat = {"type": "function", **tool()["function"]}
    body = {"input": "hi", "tools": [flat], "parallel_tool_calls": False, "max_output_tokens": 160, "store": False}
    answer = await whole(client, {**body, "logit_bias": {str(MARKER): 12}, "seed": 2}, path="/v1/responses")
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    assert matches({"function": call})
    flat["parameters"] = {**PARAMETERS, "not": {}}
    error = await refused(client, body, path="/v1/responses", param="tools[0].parameters")
    assert "not" in error["message"]
