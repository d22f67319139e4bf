"""What a request is told that is not admitted: an error that says which limit, whose, and when to come back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.errors import AuthenticationError, GatewayError, PermissionDenied, QuotaExhausted, QuotaHeld, RateLimited
from gateway.tenancy.verdicts import Verdict

MAX_WAIT_S = 120
"""Official SDKs wait no longer than this before they try again."""

_KEY_FAULTS = {
    "unknown": "The API key is not valid.",
    "disabled": "The API key is disabled.",
    "expired": "The API key has expired.",
}

_RATES: Mapping[str, tuple[str, str]] = {
    "requests": ("requests per minute", "requests"),
    "tokens": ("tokens per minute", "tokens"),
    "concurrency": ("requests at once", "requests"),
    "resident": ("memory of the model that is held at once", "KiB"),
}


def refusal(verdict: Verdict, scope: str) -> GatewayError:
    """The error for a verdict that is not `ok`.

    Args:
        verdict: Of the admission.
        scope: What the key needed.
    """
    kind = verdict.kind
    if kind in _KEY_FAULTS:
        code = None if kind == "unknown" else f"api_key_{kind}"
        return AuthenticationError(_KEY_FAULTS[kind], code=code)
    if kind == "scope":
        return missing_scope(scope)
    if kind == "suspended":
        return tenant_stopped()
    return _limit_reached(verdict)


def tenant_stopped() -> PermissionDenied:
    """The error for a tenant that may run nothing."""
    return PermissionDenied("The tenant of this API key is suspended or archived.", code="tenant_suspended")


def missing_scope(scope: str) -> PermissionDenied:
    """The error for a key that may not do what needs `scope`."""
    return PermissionDenied(f"The API key lacks the scope '{scope}'.", code="missing_scope")


def _limit_reached(verdict: Verdict) -> GatewayError:
    retry_s = verdict.retry_ms / 1000
    details = _details(verdict)
    headers = _retry_headers(verdict.retry_ms) | verdict.headers()
    who = f"this {verdict.source}"
    if verdict.kind == "exceeded":
        if retry_s > MAX_WAIT_S:
            headers = verdict.headers() | {"x-should-retry": "false"}
        when = f", until {details['resets_at']}" if details["resets_at"] else ""
        message = (
            f"The KV quota of {who} is used up: {verdict.used} of {verdict.limit} KiB-seconds{when}. "
            "It counts the memory that prompts and answers hold, times seconds."
        )
        return QuotaExhausted(message, details, headers)
    if verdict.kind == "held":
        message = (
            f"The rest of the KV quota of {who} is held by its own running work ({verdict.held} of {verdict.limit} "
            "KiB-seconds); try again when some of that has ended."
        )
        return QuotaHeld(message, details, headers)
    what, _ = _RATES[verdict.kind]
    message = (
        f"Rate limit reached for {who}: {what}. Limit {verdict.limit}, used {verdict.used}. "
        f"Please try again in {retry_s:.3g} s."
    )
    return RateLimited(message, details, headers)


def _details(verdict: Verdict) -> dict[str, Any]:
    unit = "kib_seconds" if verdict.kind in ("exceeded", "held") else _RATES[verdict.kind][1]
    return {
        "limit_source": verdict.source,
        "limit_kind": verdict.kind if verdict.kind in _RATES else "kv",
        "limit": verdict.limit,
        "used": verdict.used,
        "held": verdict.held,
        "remaining": max(0, verdict.limit - verdict.used - verdict.held),
        "unit": unit,
        "resets_at": stamp(verdict.resets_ms),
    }


def _retry_headers(retry_ms: int) -> dict[str, str]:
    return {
        "Retry-After": str(max(1, math.ceil(retry_ms / 1000))),
        "retry-after-ms": str(max(1, retry_ms)),
        "x-should-retry": "true",
    }


def stamp(at_ms: int) -> str | None:
    """A time as people and programs read it, in UTC; None for no time."""
    return None if at_ms <= 0 else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
