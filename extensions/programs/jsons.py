"""Values of scripts that leave their sandbox: JSON, of a size that is known before anything is done with them."""

from __future__ import annotations

import json
import math
from typing import Any

from extensions.programs.faults import invalid

MAX_NAME_CHARS = 200
"""Longest name of anything that a script keeps or sends by a name."""


def encoded(value: object, name: str, most_bytes: int) -> bytes:
    """A value as JSON in UTF-8.

    Raises:
        ValueError: It is no JSON, no valid Unicode or too large (`invalid_argument`).
    """
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
        ValueError: It is no JSON (`invalid_argument`).
    """
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
