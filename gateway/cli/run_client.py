"""Requests of `wye runs` to a server's /v1/runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from gateway.cli.exits import Exit

MAX_TRIES = 5
"""Times that events are asked for again without any coming before a server is taken to be gone."""

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_READ_S = 120.0
"""Longest silence of a stream, whose server sends a sign of life more often."""

_CODES = {404: Exit.NOT_FOUND, 401: Exit.ACCESS_DENIED, 403: Exit.ACCESS_DENIED, 503: Exit.UNAVAILABLE}


class RunRequestFailed(Exception):
    """The server refused, or there is none.

    Attributes:
        message: One line for people.
        code: How the command ends.
    """

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class RunClient:
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
            RunRequestFailed: It was refused, or no server is there.
        """
        address = f"{self._url}/v1/runs{path}"
        try:
            answer = httpx.request(
                method, address, json=body, params=params or None, headers=self._headers, timeout=_TIMEOUT
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._gone(error) from None
        return _checked(answer)

    def events(self, run_id: str, after: int) -> Iterator[dict[str, Any]]:
        """Events of a run up to its last one, across losses of the connection: each comes once.

        Raises:
            RunRequestFailed: It was refused, or no server is there any more.
        """
        tries = 0
        while True:
            try:
                for event in self._stream(run_id, after):
                    tries = 0
                    if event["type"] == "error":
                        raise RunRequestFailed(str(event["error"].get("message")))
                    after = event["sequence_number"]
                    yield event
                    if "run" in event:
                        return
                if self.send("GET", f"/{run_id}")["status"] != "in_progress":
                    return
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                tries += 1
                if tries >= MAX_TRIES:
                    raise self._gone(error) from None
                time.sleep(0.5 * tries)

    def _stream(self, run_id: str, after: int) -> Iterator[dict[str, Any]]:
        address = f"{self._url}/v1/runs/{run_id}/events"
        timeout = httpx.Timeout(30.0, connect=5.0, read=_READ_S)
        params = {"after": after}
        with httpx.stream("GET", address, params=params, headers=self._headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                answer.read()
                _checked(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

    def _gone(self, error: Exception) -> RunRequestFailed:
        return RunRequestFailed(f"{self._url} does not answer: {error}", Exit.UNAVAILABLE)


def _checked(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        found = None
    if answer.status_code == 200 and isinstance(found, dict):
        return found
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    told = str(message) if message else f"the server answered {answer.status_code}"
    raise RunRequestFailed(told, _CODES.get(answer.status_code, Exit.FAILURE))
