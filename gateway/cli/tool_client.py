"""Requests of `wye tools` to a server's /v1/tools."""

from __future__ import annotations

from typing import Any

import httpx

from gateway.cli.exits import Exit

_TIMEOUT = httpx.Timeout(660.0, connect=5.0)
"""Calls of tools may take ten minutes."""


class RequestFailed(Exception):
    """The server refused, or there is none.

    Attributes:
        message: One line for people.
        code: How the command ends.
    """

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ToolClient:
    """Talks to one server.

    Args:
        url: Its address, with or without `/v1`.
        api_key: Sent if there is one.
    """

    def __init__(self, url: str, api_key: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def send(self, method: str, path: str, body: dict[str, Any] | None = None, **params: Any) -> dict[str, Any]:
        """Sends one request and returns its answer.

        Raises:
            RequestFailed: It was refused, or no server is there.
        """
        address = f"{self._url}/v1/tools{path}"
        try:
            answer = httpx.request(
                method, address, json=body, params=params or None, headers=self._headers, timeout=_TIMEOUT
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RequestFailed(f"{self._url} does not answer: {error}", Exit.UNAVAILABLE) from None
        found = _decoded(answer)
        if answer.status_code == 200:
            return found
        codes = {404: Exit.NOT_FOUND, 401: Exit.ACCESS_DENIED, 403: Exit.ACCESS_DENIED, 503: Exit.UNAVAILABLE}
        raise RequestFailed(_message(found, answer.status_code), codes.get(answer.status_code, Exit.FAILURE))

    def all(self) -> list[dict[str, Any]]:
        """Every tool and server that one can use.

        Raises:
            RequestFailed: It was refused, or no server is there.
        """
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {"limit": 100}
        while True:
            page = self.send("GET", "", **params)
            found += page["data"]
            if not page["has_more"]:
                return found
            params["after"] = page["last_id"]


def _decoded(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def _message(found: dict[str, Any], status: int) -> str:
    error = found.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message) if message else f"the server answered {status}"
