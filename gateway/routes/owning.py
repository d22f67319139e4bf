"""Whose things are whose: with API keys, what one key has stored is not there for another."""

from __future__ import annotations

from fastapi import Request

from gateway.services import Services
from gateway.tenancy.payer import Payer, salt_of
from gateway.tenancy.principal import ALL_SCOPES, label_of_key, principal_of
from gateway.tenancy.tickets import ticket_of


def owner_of(request: Request, services: Services) -> str:
    """Who is asking: the tenant, or what tells nothing of the key; the same for everybody where there are no keys."""
    if (principal := principal_of(request.scope)) is not None:
        return principal.owner
    if not services.settings.api_keys:
        return ""
    _, _, key = request.headers.get("authorization", "").strip().partition(" ")
    return label_of_key(key.strip().encode("latin-1"))


def is_operator(request: Request, services: Services) -> bool:
    """Whether nobody but the server's operator can be asking: with a key of the settings where tenants have keys of
    their own, else with the only key there is, or with none where none is needed."""
    if (principal := principal_of(request.scope)) is not None:
        return not principal.tenant
    return len(services.settings.api_keys) <= 1


def payer_of(request: Request, services: Services, cache_salt: str | None) -> Payer:
    """Who pays for the work of a request.

    Args:
        request: Of the client.
        services: Of the app.
        cache_salt: That it asks for.
    """
    account, principal = owner_of(request, services), principal_of(request.scope)
    scopes = ALL_SCOPES if principal is None else principal.scopes
    return Payer(account, salt_of(account, cache_salt), ticket_of(request.scope), scopes)
