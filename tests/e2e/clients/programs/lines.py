"""What scenarios say, known to both sides, and how a prompt names one. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

HELLO = "Hello there, naïve 世界 🙂."
THOUGHT = "The user greets me."
FORECAST = "It is 21 degrees in Oslo."
BOTH = "It is 21 degrees in Oslo at 12:30."
RECALLED = "I said hello before."
OBEYED = "I said hello before, and I am brief."
FORGOT = "I said nothing before."
FIRST_TOKENS = "One moment"

INSTRUCTIONS = "Be brief."
"""What stands before everything else where a scenario asks for it."""

DEGREES = "21 degrees"
"""What the tool `get_weather` returns."""

CLOCK = "12:30"
"""What the tool `get_time` returns."""

TEXTS = ["The cat sleeps.", "Interest rates rose again."]
"""What embeddings are made of."""

NUM_DIMENSIONS = 8
"""Of the scripted engine's embeddings."""

BATCH_CHATS = {"first": "[[hello]]", "second": "[[recall]]"}
"""Prompts of a batch, by their ids."""

WEATHER: dict[str, Any] = {"city": "Oslo", "days": 2}
TIME: dict[str, Any] = {"zone": "Europe/Oslo"}
PERSON: dict[str, Any] = {"name": "Zoë Lovelace", "age": 36}

WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TIME_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string"}},
    "required": ["zone"],
    "additionalProperties": False,
}


def history(role: str = "system") -> list[dict[str, Any]]:
    """Instructions, a turn, and what was asked next."""
    return [
        {"role": role, "content": INSTRUCTIONS},
        {"role": "user", "content": ask("hello")},
        {"role": "assistant", "content": HELLO},
        {"role": "user", "content": [{"type": "text", "text": ask("obey")}]},
    ]


def batch_file(model: str) -> bytes:
    """The file of a batch of chats."""
    lines = [
        {
            "custom_id": key,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": model, "messages": [{"role": "user", "content": prompt}]},
        }
        for key, prompt in BATCH_CHATS.items()
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def batch_results(output: str) -> dict[str, str]:
    """What a batch's chats said, by their ids."""
    results = [json.loads(line) for line in output.splitlines()]
    return {result["custom_id"]: result["response"]["body"]["choices"][0]["message"]["content"] for result in results}


BATCH_RESULTS = {"first": HELLO, "second": FORGOT}


def check_embeddings(found: Sequence[Sequence[float]]) -> None:
    """Raises unless these are the embeddings of `TEXTS`."""
    assert [len(vector) for vector in found] == [NUM_DIMENSIONS] * len(TEXTS), found
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-5 for vector in found), found
    assert found[0] != found[1]


def ask(scenario: str, **options: int) -> str:
    """A prompt that names a scenario; see `tests.e2e.clients.scenarios`."""
    return f"[[{' '.join([scenario, *(f'{name}={value}' for name, value in options.items())])}]]"


def get_weather(city: str, days: int) -> str:
    """Tells the weather of a city.

    Args:
        city: Its name.
        days: How many days from today.
    """
    assert {"city": city, "days": days} == WEATHER
    return DEGREES


def get_time(zone: str) -> str:
    """Tells the time.

    Args:
        zone: Name of the time zone.
    """
    assert {"zone": zone} == TIME
    return CLOCK
