"""A wish to keep a context's KV while nobody computes on it, and what has become of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

OnPressure = Literal["host", "tokens", "release", "fail"]
"""What happens to the KV when others need the pages: moved to host memory, or given up; the context with it, or the
next computation on it fails once."""

Reason = Literal["pressure", "expired", "quota", "budget", "engine"]
"""Why a lease ended before its holder ended it: others needed the pages; its time was over; its account is at its
ceiling; the context has grown beyond the budget; the engine went away."""


class LeaseRevoked(msgspec.Struct, frozen=True, array_like=True):
    """News of a lease that has ended before its holder ended it.

    Attributes:
        context_id: Of the context.
        lease_id: Which lease.
        reason: Why.
    """

    context_id: str
    lease_id: str
    reason: Reason


@dataclass(slots=True, eq=False)
class Lease:
    """One lease.

    Attributes:
        lease_id: Its name, made by its holder.
        value: The chance that the context is used again, as its holder sees it; 0..1.
        ends_at: Meter's time at which it is over.
        max_kib: Budget of KV that it holds for.
        on_pressure: What happens when others need the pages.
        was_used: Somebody computed on the context since it began.
    """

    lease_id: str
    value: float
    ends_at: int
    max_kib: int
    on_pressure: OnPressure
    was_used: bool = False
