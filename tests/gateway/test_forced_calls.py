"""Demanded calls on a real engine: whatever a model of random weights would say, it calls as it must."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.build import build_loop
from engine.config import EngineConfig, KVConfig
from engine.connection import EngineConnection
from engine.engine import open_engine
from engine.text.model import TextModel
from gateway.app import create_app
from tests.fakes import make_settings
from tests.gateway.test_tools import both
from tests.gateway.wire import chat, refused
from tests.tiny_models import write_tiny_model

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"enum": [1, 42]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}

SCHEMA_PARAM = "tools[0].function.parameters"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


@pytest.fixture
async def engine(directory: Path) -> AsyncIterator[EngineConnection]:
    """A real engine that checks its pages whenever it is idle."""
    config = EngineConfig(
        model=str(directory), device="cpu", weights="float32", check_integrity=True, kv=KVConfig(num_pages=64)
    )
    async with open_engine(build_loop(config)) as engine:
        yield engine


@pytest.fixture
async def client(engine: EngineConnection, directory: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Talks to an app over the real engine."""
    app = create_app(make_settings(), engine=engine, text=TextModel.load(directory))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60) as client:
        yield client


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": NAMED},
        {"tool_choice": "required", "parallel_tool_calls": False},
    ],
)
async def test_g_22_g_27_a_demanded_call_matches_its_schema(
    client: httpx.AsyncClient, fields: dict[str, Any], seed: int
) -> None:
    body = chat(tools=[WEATHER], **fields, seed=seed, temperature=1.0, max_tokens=150)
    message, reason = await both(client, body)
    assert reason == "tool_calls"
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Oslo", "Lima")
    assert arguments["days"] in (1, 42)


async def test_g_23_a_demanded_call_that_is_cut_ends_with_length_in_both_modes(client: httpx.AsyncClient) -> None:
    message, reason = await both(client, chat(tools=[WEATHER], tool_choice="required", max_tokens=4, seed=1))
    assert reason == "length"
    assert not message["content"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"a": "bar"}},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(unclosed"}}, "required": ["a"]},
    ],
)
async def test_a_schema_that_cannot_be_enforced_is_refused(
    client: httpx.AsyncClient, parameters: dict[str, Any]
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    await refused(client, chat(tools=[tool], tool_choice="required", stream=True), param=SCHEMA_PARAM)


async def test_a_schema_too_deep_is_refused(client: httpx.AsyncClient) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(80):
        schema = {"type": "object", "properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    await refused(client, chat(tools=[tool], tool_choice="required"), param=SCHEMA_PARAM)
