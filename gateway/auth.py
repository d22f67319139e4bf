"""Who may call: bearer keys, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.caller import caller_of
from gateway.errors import AuthenticationError

OPEN_PATHS = frozenset({"/", "/health", "/ping", "/ready"})
"""Paths that need no key: what load balancers ask, and where somebody looks who knows nothing of the server yet."""


class ApiKeys:
    """The keys that are accepted; any key, or none, if there are no keys."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, authorization: bytes | None) -> None:
        """Looks at the value of an `Authorization` header.

        Raises:
            AuthenticationError: It holds no known key.
        """
        if self._digests and not self.knows(bearer_key(authorization)):
            raise AuthenticationError("The API key is not valid.")

    def knows(self, key: bytes) -> bool:
        """True if the key is one of these."""
        given = _digest(key)
        # Every key is compared, so that the time taken says nothing about which one came close.
        return sum(hmac.compare_digest(given, known) for known in self._digests) > 0


class Authenticate:
    """ASGI middleware: lets a request through if its key is known or its path is open."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, open_paths: frozenset[str] = OPEN_PATHS) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in self._open_paths
        # A request of our own is made for somebody who has shown a key.
        if not is_open and caller_of(scope) is None:
            self._keys.check(dict(scope["headers"]).get(b"authorization"))
        await self._app(scope, receive, send)


def bearer_key(authorization: bytes | None) -> bytes:
    """The key in an `Authorization` header.

    Raises:
        AuthenticationError: There is none.
    """
    if authorization is None:
        raise AuthenticationError("No API key given. Send it in the header 'Authorization: Bearer KEY'.")
    scheme, _, key = authorization.strip().partition(b" ")
    if scheme.lower() != b"bearer" or not key.strip():
        raise AuthenticationError("The API key is not valid.")
    return key.strip()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
