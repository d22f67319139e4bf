"""Windows of quotas: when they end. One place for the API, the store and every page that shows it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MIN_ROLLING_S = 60
MAX_ROLLING_S = 400 * 24 * 3600
NUM_AHEAD = 24
"""Ends of calendar windows that the store is told in advance; it has no calendar."""

_KINDS = ("hour", "day", "week", "month")
_ROLLING = re.compile(r"rolling:([0-9]{1,9})")


def check_window(window: str) -> str:
    """The same text, if it names a window.

    Raises:
        ValueError: It does not.
    """
    if rolling_s(window) is not None:
        return window
    kind, at, zone = window.partition("@")
    if kind not in _KINDS or (at and not zone):
        raise ValueError("it must be hour, day, week or month, with @ and a time zone, or rolling:SECONDS")
    _zone(zone or "UTC")
    return window if at else f"{kind}@UTC"


def rolling_s(window: str) -> int | None:
    """Seconds of a rolling window; None for a calendar's.

    Raises:
        ValueError: They are too few or too many.
    """
    match = _ROLLING.fullmatch(window)
    if match is None:
        return None
    seconds = int(match[1])
    if not MIN_ROLLING_S <= seconds <= MAX_ROLLING_S:
        raise ValueError(f"a rolling window must have from {MIN_ROLLING_S} to {MAX_ROLLING_S} seconds")
    return seconds


def ends_ms(window: str, after_ms: int, count: int = NUM_AHEAD) -> list[int]:
    """The next ends of a calendar's windows, in milliseconds.

    Args:
        window: A calendar's.
        after_ms: The first end is later than this.
        count: How many.
    """
    kind, _, name = window.partition("@")
    zone = _zone(name)
    begin = _begin(kind, datetime.fromtimestamp(after_ms / 1000, zone))
    found: list[int] = []
    while len(found) < count:
        begin = _next(kind, begin)
        end_ms = int(begin.timestamp() * 1000)
        # An hour that a clock change repeats ends once for the calendar, and once for everybody else.
        if end_ms > max(after_ms, found[-1] if found else after_ms):
            found.append(end_ms)
    return found


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name[:64]!r}") from None


def _begin(kind: str, now: datetime) -> datetime:
    begin = now.replace(minute=0, second=0, microsecond=0)
    if kind == "hour":
        return begin
    begin = begin.replace(hour=0, fold=0)
    if kind == "week":
        return begin - timedelta(days=begin.weekday())
    return begin.replace(day=1) if kind == "month" else begin


def _next(kind: str, begin: datetime) -> datetime:
    # Arithmetic of one zone is that of its clocks on the wall: a day later is the same hour.
    if kind == "month":
        year, month = divmod(begin.year * 12 + begin.month, 12)
        return begin.replace(year=year, month=month + 1)
    if kind == "hour":
        later = datetime.fromtimestamp(begin.timestamp() + 3600, begin.tzinfo)
        return later.replace(minute=0, second=0, microsecond=0)
    return begin + timedelta(days=7 if kind == "week" else 1)
