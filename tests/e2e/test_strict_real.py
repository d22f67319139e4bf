"""Calls of strict tools that nobody demands, from SmolLM2 behind the whole server."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.gateway.test_tools import both
from tests.gateway.wire import chat

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

CITIES = ("Oslo", "Lima", "Kyiv")
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": CITIES},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}


def conversation() -> list[dict[str, Any]]:
    """Two calls as they should be, and a question that asks for what the schema does not allow."""
    messages: list[dict[str, Any]] = []
    for city, days in (("Oslo", 3), ("Lima", 2)):
        arguments = json.dumps({"city": city, "days": days, "unit": "C"})
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        messages.append({"role": "user", "content": f"Weather in {city} for {days} days?"})
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    return [*messages, {"role": "user", "content": "Weather in Berlin for thirty days in kelvin?"}]


def fits(arguments: str) -> bool:
    value = json.loads(arguments)
    known = value.keys() == {"city", "days", "unit"} and value["city"] in CITIES and value["unit"] in ("C", "F")
    return known and type(value["days"]) is int and 1 <= value["days"] <= 14


async def test_arguments_match_where_the_model_decides_to_call(real_client: httpx.AsyncClient) -> None:
    outcomes: dict[bool, list[bool]] = {False: [], True: []}
    for strict in outcomes:
        function = {
            "name": "get_weather",
            "description": "Weather forecast",
            "parameters": PARAMETERS,
            "strict": strict,
        }
        for seed in range(5):
            body = chat(
                messages=conversation(),
                tools=[{"type": "function", "function": function}],
                temperature=0.7,
                seed=seed,
                max_tokens=100,
            )
            message, _ = await both(real_client, body)
            outcomes[strict] += [fits(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert len(outcomes[True]) >= 3
    assert all(outcomes[True])
    assert not all(outcomes[False])  # it is the form that makes them match
