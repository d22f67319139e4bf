"""A script's handle on a lease; see `Lease` in the stubs."""

from __future__ import annotations

import math
from typing import Any, get_args

from engine.leases.lease import OnPressure
from extensions.leases import MAX_TTL_S, ContextLease
from extensions.live_context import LiveContext
from extensions.programs.faults import invalid


class ScriptLease:
    """One lease of a run."""

    def __init__(self, lease: ContextLease) -> None:
        self._lease = lease

    @property
    def revoked(self) -> str | None:
        """Why it is over although the script has not ended it."""
        return None if self._lease.ended == "ended" else self._lease.ended

    async def end(self) -> None:
        """Ends it."""
        self._lease.end()


async def retain(live: LiveContext, ttl_s: Any, max_bytes: Any, value: Any, on_pressure: Any) -> ScriptLease:
    """Begins a lease on a context.

    Raises:
        ValueError: An argument is not what it must be, or the context holds more already (`invalid_argument`).
        QuotaExceeded: Its account may hold no more.
    """
    seconds = _number(ttl_s, "ttl_s")
    if not 0.0 < seconds <= MAX_TTL_S:
        raise invalid(f"ttl_s must be positive, and at most {MAX_TTL_S:g}")
    chance = _number(value, "value")
    if not 0.0 <= chance <= 1.0:
        raise invalid("value must be between 0 and 1")
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
        raise invalid("max_bytes must be a whole number, at least 1")
    if on_pressure not in get_args(OnPressure):
        raise invalid(f"on_pressure must be one of {', '.join(get_args(OnPressure))}")
    return ScriptLease(await live.retain(ttl_s=seconds, max_bytes=max_bytes, value=chance, on_pressure=on_pressure))


def _number(given: Any, name: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
        raise invalid(f"{name} must be a number")
    return float(given)
