"""Requests that programs send by themselves, to hosts that the operator allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import httpx2

from extensions.tools.catalog import HttpReply
from extensions.tools.egress import EgressPolicy, GuardedTransport, ascii_host
from extensions.tools.errors import EgressDenied, ToolFailed, ToolInvalid
from extensions.tools.sending import Sent, send
from extensions.tools.urls import check_url
from extensions.tools.wire import check_headers

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
"""What may be sent."""


async def fetch(
    policy: EgressPolicy,
    connect: Callable[[str, bool, int], GuardedTransport],
    sent: Sent,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None,
    max_bytes: int,
) -> HttpReply:
    """Sends one request, over a connection of its own.

    Raises:
        ToolInvalid: It cannot be sent as it is.
        EgressDenied: The host is not one of those that may be asked.
        ToolFailed: The answer cannot be used.
        httpx2.TransportError: None came.
    """
    if method not in METHODS:
        raise ToolInvalid(f"method must be one of {', '.join(sorted(METHODS))}", "method")
    check_url(url, "url", is_trusted=True)
    check_headers(headers, "headers")
    try:
        request = httpx2.Request(method, url, headers=dict(headers), content=body)
    except (httpx2.InvalidURL, ValueError) as error:
        raise ToolInvalid(f"url is no URL: {error}", "url") from None
    host = ascii_host(request.url)
    if not (policy.names(host) or "*" in policy.hosts):
        known = ", ".join(policy.hosts[:20]) or "none"
        raise EgressDenied(f"programs here may not send requests to {host}; allowed hosts: {known}")
    transport = connect(host, False, 0)
    try:
        reply = await send(transport, request, sent, max_bytes)
    finally:
        await transport.aclose()
    if 300 <= reply.status < 400 and reply.status != 304:
        # The program sees where it leads, and may ask there, if that host is allowed.
        location = reply.headers.get("location", "")[:2000]
        return HttpReply(status=reply.status, headers={"location": location}, body=reply.text, is_cut=reply.is_cut)
    if len(reply.headers) > 1000:
        raise ToolFailed("the answer has too many headers")
    shown = {name.lower(): value for name, value in reply.headers.items() if name.lower() != "set-cookie"}
    return HttpReply(status=reply.status, headers=shown, body=reply.text, is_cut=reply.is_cut)
