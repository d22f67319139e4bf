"""Tools that are HTTP services: arguments as JSON or in the address, the answer as JSON or text."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from extensions.tools.catalog import REPEATABLE, ToolResult
from extensions.tools.egress import GuardedTransport
from extensions.tools.errors import ToolArgumentsInvalid, ToolFailed
from extensions.tools.sending import Reply, Sent, send
from extensions.tools.spec import HttpTarget, ToolSpec
from extensions.tools.urls import filled
from extensions.tracing import trace_headers

IDEMPOTENCY_HEADER = "Idempotency-Key"
"""Carries the id of one piece of work, so that a service can tell a repetition from a second order."""

KEEPS = 64
"""Connections to a host that wait for the next call at most: about as many as many runs at once ask in one moment."""

IDLE_S = 60.0
"""Connections to a host that was not asked for that long are closed."""

_HAS_NO_BODY = frozenset({"GET", "DELETE"})


class HttpTools:
    """Calls HTTP tools, each over connections of its own.

    Args:
        connect: Makes a transport for a host; the flag says if an operator named it, the number how many connections
            are kept.
    """

    def __init__(self, connect: Callable[[str, bool, int], GuardedTransport]) -> None:
        self._connect = connect
        self._pools: dict[tuple[str, bool, bool], _Pool] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

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
        key = host, spec.is_trusted, keeps
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(self._connect(host, spec.is_trusted, KEEPS if keeps else 0))
            self._watch()
        pool.num_busy += 1
        try:
            return to_result(await send(pool.transport, request, sent, spec.max_output_bytes))
        finally:
            pool.num_busy -= 1
            pool.used_at = time.monotonic()

    async def aclose(self) -> None:
        """Closes all connections. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close(list(self._pools))
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _watch(self) -> None:
        if self._timer is None and self._pools:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        now = time.monotonic()
        self._close([key for key, one in self._pools.items() if not one.num_busy and now - one.used_at > IDLE_S])
        self._watch()

    def _close(self, keys: list[tuple[str, bool, bool]]) -> None:
        for key in keys:
            task = asyncio.ensure_future(self._pools.pop(key).transport.aclose())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


@dataclass(slots=True)
class _Pool:
    """Connections to one host.

    Attributes:
        transport: Keeps them.
        num_busy: Requests on their way.
        used_at: When the last one ended, on the monotonic clock.
    """

    transport: GuardedTransport
    num_busy: int = 0
    used_at: float = field(default_factory=time.monotonic)


def _request(target: HttpTarget, arguments: Mapping[str, Any], operation_id: str) -> httpx2.Request:
    url, rest = filled(target.url, arguments)
    headers = {
        "accept": "application/json, text/*;q=0.9, */*;q=0.1",
        **{k.lower(): v for k, v in target.headers.items()},
    }
    headers[IDEMPOTENCY_HEADER] = operation_id
    headers |= trace_headers()
    try:
        asked = httpx2.URL(url)
        if target.method in _HAS_NO_BODY and rest:
            asked = asked.copy_merge_params({name: _as_query(value) for name, value in rest.items()})
    except httpx2.InvalidURL as error:
        raise ToolArgumentsInvalid(f"arguments make no address that can be asked: {error}", "arguments") from None
    if target.method in _HAS_NO_BODY:
        return httpx2.Request(target.method, asked, headers=headers)
    headers["content-type"] = "application/json"
    content = json.dumps(rest, ensure_ascii=False, allow_nan=False).encode()
    return httpx2.Request(target.method, asked, headers=headers, content=content)


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
