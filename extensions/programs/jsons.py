"""Values of scripts that leave their sandbox: JSON, of a size that is known before anything is done with them."""

from __future__ import annotations

import json
import math
from typing import Any

from extensions.programs.faults import invalid

MAX_NAME_CHARS = 200
"""Longest name of anything that a script keeps or sends by a name."""

MAX_DEPTH = 200
"""Lists and dicts within each other. The sandbox itself cuts off without a word what is more than twice as deep."""


def check_depth(value: object, name: str) -> None:
    """Refuses what is nested too deep to leave the sandbox whole.

    Raises:
        ValueError: It is (`invalid_argument`).
    """
    level: list[object] = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [one for one in level if isinstance(one, list | tuple | dict)]
        if not containers:
            return
        level = [inner for one in containers for inner in (one.values() if isinstance(one, dict) else one)]
    raise invalid(f"{name} is nested too deep: lists and dicts may lie {MAX_DEPTH} deep within each other")


def encoded(value: object, name: str, most_bytes: int) -> bytes:
    """A value as JSON in UTF-8.

    Raises:
        ValueError: It is no JSON, no valid Unicode, too deep or too large (`invalid_argument`).
    """
    check_depth(value, name)
    try:
        data = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"{name} must be a JSON value: {error}") from None
    if len(data) > most_bytes:
        raise invalid(f"{name} has {len(data)} bytes as JSON, at most {most_bytes} are allowed")
    return data


def copied(value: object, name: str) -> Any:
    """A value as it is after a way through JSON: nothing of the script's own is left in it.

    Raises:
        ValueError: It is no JSON, or too deep (`invalid_argument`).
    """
    check_depth(value, name)
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise invalid(f"{name} must be a JSON value: {error}") from None


def checked_name(value: object, name: str) -> str:
    """A name that a script gives to something.

    Raises:
        ValueError: It is no text, empty, too long or no valid Unicode (`invalid_argument`).
    """
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_NAME_CHARS:
        raise invalid(f"{name} must be a text of 1 to {MAX_NAME_CHARS} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(f"{name} must be valid Unicode") from None
    return value


def seconds(value: object, name: str, most: float = 10.0**9) -> float | None:
    """A time that a script gives; None is none.

    Raises:
        ValueError: It is no number from 0 to `most` (`invalid_argument`).
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid(f"{name} must be a number")
    if not 0 <= value <= most:
        raise invalid(f"{name} must be between 0 and {most:g}")
    return float(value)
