"""Requests that this process makes to itself: for whom, and how urgent. No client can pretend to be one."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

_KEY = "wye.caller"
"""Of an ASGI scope, which is made by the server alone."""


@dataclass(frozen=True, slots=True)
class Caller:
    """For whom a request is made.

    Attributes:
        owner: Whose things it sees, see `gateway.routes.owning`.
        priority: Added to that of the request; higher starts later.
        scopes: What the key may do with which it was asked for.
    """

    owner: str
    priority: int
    scopes: str = "*"


def caller_of(scope: MutableMapping[str, Any]) -> Caller | None:
    """For whom a request is made; None if it came over the network."""
    caller = scope.get(_KEY)
    return caller if isinstance(caller, Caller) else None


def with_caller(scope: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """The scope of a request of our own."""
    return {**scope, _KEY: caller}
