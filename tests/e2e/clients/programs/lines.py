"""What scenarios say, known to both sides, and how a prompt names one. Standard library only."""

from __future__ import annotations

from typing import Any

HELLO = "Hello there, naïve 世界 🙂."
THOUGHT = "The user greets me."
FORECAST = "It is 21 degrees in Oslo."
BOTH = "It is 21 degrees in Oslo at 12:30."
RECALLED = "I said hello before."
FORGOT = "I said nothing before."
FIRST_TOKENS = "One moment"

DEGREES = "21 degrees"
"""What the tool `get_weather` returns."""

CLOCK = "12:30"
"""What the tool `get_time` returns."""

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
