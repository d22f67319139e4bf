"""What commands ask of a server: one request, and its answer or one line of what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx

from gateway.cli.exits import Exit

CONNECT_S = 5.0
MAX_PAGE = 100

_CODES = {
    404: Exit.NOT_FOUND,
    410: Exit.NOT_FOUND,
    401: Exit.ACCESS_DENIED,
    403: Exit.ACCESS_DENIED,
    503: Exit.UNAVAILABLE,
}
_REFUSED_TOOL = "egress_denied"
"""Code of a 403 by which not the caller was refused, but what a tool would have reached."""


class RequestFailed(Exception):
    """The server refused, or there is none.

    Attributes:
        message: One line for people.
        code: How the command ends.
        status: Of the answer; 0 if there was none.
    """

    def __init__(self, message: str, code: Exit = Exit.FAILURE, status: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


class ApiClient:
    """Talks to one server.

    Args:
        url: Its address, with or without `/v1`.
        key: Sent if there is one.
        root: What all paths are below.
        timeout_s: Longest wait for an answer.

    Attributes:
        headers: Sent with every request.
    """

    def __init__(self, url: str, key: str, root: str, timeout_s: float = 30.0) -> None:
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._url = url.rstrip("/").removesuffix("/v1")
        self._root = root
        self._timeout = httpx.Timeout(timeout_s, connect=CONNECT_S)

    def address(self, path: str) -> str:
        """Of what is at a path."""
        return f"{self._url}{self._root}{path}"

    def send(self, method: str, path: str, body: Any = None, **params: Any) -> dict[str, Any]:
        """Sends one request and returns its answer.

        Raises:
            RequestFailed: It was refused, or no server is there.
        """
        try:
            answer = httpx.request(
                method,
                self.address(path),
                json=body,
                params=params or None,
                headers=self.headers,
                timeout=self._timeout,
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.gone(error) from None
        return checked(answer)

    def items(self, path: str, **params: Any) -> Iterator[dict[str, Any]]:
        """All items of a list.

        Raises:
            RequestFailed: It was refused, or no server is there.
        """
        asked = {**params, "limit": MAX_PAGE}
        while True:
            page = self.send("GET", path, **asked)
            yield from page["data"]
            if not page.get("has_more"):
                return
            asked["after"] = page["last_id"]

    def gone(self, error: Exception) -> RequestFailed:
        """What there is to say of a server that did not answer."""
        return RequestFailed(f"{self._url} does not answer: {error}", Exit.UNAVAILABLE)


def checked(answer: httpx.Response) -> dict[str, Any]:
    """The JSON of an answer.

    Raises:
        RequestFailed: It is an error, or no JSON.
    """
    try:
        found = answer.json()
    except ValueError:
        found = None
    if answer.is_success and isinstance(found, dict):
        return found
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    told = str(message) if message else f"the server answered {answer.status_code}"
    is_refused_tool = isinstance(error, dict) and error.get("code") == _REFUSED_TOOL
    code = Exit.FAILURE if is_refused_tool else _CODES.get(answer.status_code, Exit.FAILURE)
    raise RequestFailed(told, code, answer.status_code)
