"""Who makes a request: found once, carried in the ASGI scope, which no client can write."""

from __future__ import annotations

import hashlib
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from gateway.caller import caller_of

_KEY = "wye.principal"

TENANT_MARK = "proj_"
"""Ids of tenants begin so; no other owner's label does."""

ALL_SCOPES = "*"
"""What a key may do that may do everything but administer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """Who asks.

    Attributes:
        owner: Label under which things are kept and charged: the tenant's id, or what stands for a key of the settings.
        key_id: Of the API key; empty if it is one of the settings.
        scopes: What the key may do, with spaces between.
        is_admin: It may administer, and do nothing else.
    """

    owner: str
    key_id: str = ""
    scopes: str = ALL_SCOPES
    is_admin: bool = False

    @property
    def tenant(self) -> str:
        """Id of the tenant; empty if it is none."""
        return self.owner if self.owner.startswith(TENANT_MARK) else ""

    def may(self, scope: str) -> bool:
        """True if the key opens what needs `scope`."""
        return self.scopes == ALL_SCOPES or scope in self.scopes.split()


def principal_of(scope: MutableMapping[str, Any]) -> Principal | None:
    """Who makes a request; None on a server without tenants."""
    found = scope.get(_KEY)
    if isinstance(found, Principal):
        return found
    caller = caller_of(scope)
    return None if caller is None else Principal(owner=caller.owner, scopes=caller.scopes)


def set_principal(scope: MutableMapping[str, Any], principal: Principal) -> None:
    """Notes who makes a request."""
    scope[_KEY] = principal


def label_of_key(key: bytes) -> str:
    """Label of what is kept for a key of the settings; it tells nothing of the key."""
    return hashlib.sha256(b"wye owner\0" + key).hexdigest()[:32]
