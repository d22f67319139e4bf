"""Requests that a script sends by itself, to hosts that the operator allows."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from extensions.programs.faults import invalid
from extensions.programs.jsons import encoded, seconds
from extensions.programs.tool_calls import catalog_of

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

MAX_BODY_BYTES = 2**20
"""Most that a script sends."""

MAX_REPLY_BYTES = 2**20
"""Most that it is given of an answer; the rest is not read."""

MAX_TIMEOUT_S = 300.0
"""Longest that it waits."""


class HttpResponse(NamedTuple):
    """See `HttpResponse` in the stubs."""

    status: int
    headers: dict[str, str]
    text: str
    json: Any
    is_cut: bool


class ScriptHttp:
    """The network as far as a script may reach it; see `Http` in the stubs."""

    def __init__(self, scope: RunScope) -> None:
        self._scope = scope

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> HttpResponse:
        """Sends a GET."""
        return await self.request("GET", url, headers=headers, timeout_s=timeout_s)

    async def post(
        self,
        url: str,
        *,
        json: Any = None,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpResponse:
        """Sends a POST."""
        return await self.request("POST", url, json=json, text=text, headers=headers, timeout_s=timeout_s)

    async def request(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> HttpResponse:
        """Sends any request."""
        scope = self._scope
        catalog = catalog_of(scope)
        if not isinstance(url, str) or not isinstance(method, str):
            raise invalid("method and url must be text")
        sent = _headers(headers)
        body = _body(json, text, sent)
        limit_s = seconds(timeout_s, "timeout_s", MAX_TIMEOUT_S) or MAX_TIMEOUT_S
        scope.guard.count_http_call()
        note = {
            "call": f"http-{scope.guard.usage.num_http_calls}",
            "name": f"{method.upper()} {url.partition('?')[0][:200]}",
        }
        scope.trace.note("tool.start", **note)
        is_error = True
        try:
            reply = await catalog.fetch(
                method.upper(), url, headers=sent, body=body, timeout_s=limit_s, max_bytes=MAX_REPLY_BYTES
            )
            is_error = reply.status >= 400
        finally:
            scope.trace.note("tool.end", **note, is_error=is_error)
        scope.note_foreign(reply.body)
        shown = dict(reply.headers)
        value = _decoded(reply.body) if "json" in shown.get("content-type", "") and not reply.is_cut else None
        scope.note_foreign("" if value is None else json_module.dumps(value, ensure_ascii=False))
        return HttpResponse(reply.status, shown, reply.body, value, reply.is_cut)


def _headers(headers: object) -> dict[str, str]:
    given = {} if headers is None else headers
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise invalid("headers must be a dict of texts")
    return {str(name).lower(): str(value) for name, value in given.items()}


def _body(json: object, text: object, headers: dict[str, str]) -> bytes | None:
    if json is not None and text is not None:
        raise invalid("give json or text, not both")
    if json is not None:
        headers.setdefault("content-type", "application/json")
        return encoded(json, "json", MAX_BODY_BYTES)
    if text is None:
        return None
    if not isinstance(text, str):
        raise invalid("text must be text")
    headers.setdefault("content-type", "text/plain; charset=utf-8")
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_BODY_BYTES:
        raise invalid(f"text has {len(data)} bytes, at most {MAX_BODY_BYTES} are allowed")
    return data


def _decoded(text: str) -> Any:
    try:
        return json_module.loads(text)
    except (ValueError, RecursionError):
        return None
