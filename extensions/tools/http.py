"""Tools that are HTTP services: arguments as JSON or in the address, the answer as JSON or text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from extensions.tools.catalog import REPEATABLE, ToolResult
from extensions.tools.egress import GuardedTransport
from extensions.tools.errors import ToolFailed
from extensions.tools.sending import Reply, Sent, send
from extensions.tools.spec import HttpTarget, ToolSpec
from extensions.tools.urls import filled

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""Carries the id of one piece of work, so that a service can tell a repetition from a second order."""

_HAS_NO_BODY = frozenset({"GET", "DELETE"})


class HttpTools:
    """Calls HTTP tools, each over connections of its own.

    Args:
        connect: Makes a transport for a host; the flag says if an operator named it, the number how many connections
            are kept.
    """

    def __init__(self, connect: Callable[[str, bool, int], GuardedTransport]) -> None:
        self._connect = connect
        self._transports: dict[tuple[str, bool, bool], GuardedTransport] = {}

    async def call(
        self, spec: ToolSpec, target: HttpTarget, arguments: Mapping[str, Any], *, operation_id: str, sent: Sent
    ) -> ToolResult:
        """Calls once.

        Raises:
            ToolArgumentsInvalid: An argument has no place in an address.
            EgressDenied: The address must not be reached.
            ToolFailed: The answer cannot be used.
            httpx2.TransportError: No answer came.
        """
        request = _request(target, arguments, operation_id)
        host = urlsplit(target.url).hostname or ""
        # An idle connection may turn out to be closed only after a request went down it. Where that must not be asked
        # again, none is kept.
        keeps = spec.effect in REPEATABLE
        transport = self._transports.get((host, spec.is_trusted, keeps))
        if transport is None:
            transport = self._connect(host, spec.is_trusted, 8 if keeps else 0)
            self._transports[host, spec.is_trusted, keeps] = transport
        return to_result(await send(transport, request, sent, spec.max_output_bytes))

    async def aclose(self) -> None:
        """Closes all connections."""
        transports, self._transports = list(self._transports.values()), {}
        for transport in transports:
            await transport.aclose()


def _request(target: HttpTarget, arguments: Mapping[str, Any], operation_id: str) -> httpx2.Request:
    url, rest = filled(target.url, arguments)
    headers = {
        "accept": "application/json, text/*;q=0.9, */*;q=0.1",
        **{k.lower(): v for k, v in target.headers.items()},
    }
    headers[IDEMPOTENCY_HEADER] = operation_id
    if target.method in _HAS_NO_BODY:
        asked = httpx2.URL(url)
        merged = asked.copy_merge_params({name: _as_query(value) for name, value in rest.items()}) if rest else asked
        return httpx2.Request(target.method, merged, headers=headers)
    headers["content-type"] = "application/json"
    content = json.dumps(rest, ensure_ascii=False, allow_nan=False).encode()
    return httpx2.Request(target.method, url, headers=headers, content=content)


def _as_query(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def to_result(reply: Reply) -> ToolResult:
    """An answer as a tool's result.

    Raises:
        ToolFailed: It is a redirect: where a tool is, its description says.
    """
    if 300 <= reply.status < 400:
        raise ToolFailed(f"the tool answered HTTP {reply.status}, a redirect, and none is followed")
    text, is_error = reply.text, reply.status >= 400
    if reply.is_json and not reply.is_cut and not is_error:
        try:
            return ToolResult(text=text, json=json.loads(text), has_json=True)
        except (ValueError, RecursionError):
            raise ToolFailed("the tool's answer says that it is JSON and is none") from None
    if is_error:
        text = f"HTTP {reply.status}: {text}"
    return ToolResult(text=text, is_error=is_error, is_cut=reply.is_cut)
