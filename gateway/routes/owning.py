"""Whose things are whose: with API keys, what one key has stored is not there for another."""

from __future__ import annotations

import hashlib

from fastapi import Request

from gateway.caller import caller_of
from gateway.services import Services


def owner_of(request: Request, services: Services) -> str:
    """Who is asking, in a form that tells nothing of the key; the same for everybody where there are no keys."""
    if (caller := caller_of(request.scope)) is not None:
        return caller.owner
    if not services.settings.api_keys:
        return ""
    _, _, key = request.headers.get("authorization", "").strip().partition(" ")
    return hashlib.sha256(b"wye owner\0" + key.strip().encode("latin-1")).hexdigest()[:32]
