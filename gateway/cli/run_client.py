"""What `wye runs` asks of a server: requests to /v1/runs, and events across lost connections."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx

from gateway.cli.api_client import CONNECT_S, ApiClient, RequestFailed, checked

MAX_TRIES = 10
"""Times that events are asked for again without any coming before a server is taken to be gone."""

_READ_S = 120.0
"""Longest silence of a stream, whose server sends a sign of life more often."""


class _Interrupted(Exception):
    """The server could not go on with a stream of events, and said why; the run may go on."""


class RunClient(ApiClient):
    """Talks to one server.

    Args:
        url: Its address, with or without `/v1`.
        api_key: Sent if there is one.
    """

    def __init__(self, url: str, api_key: str) -> None:
        super().__init__(url, api_key, "/v1/runs")

    def events(self, run_id: str, after: int) -> Iterator[dict[str, Any]]:
        """Events of a run up to its last one, across losses of the connection: each comes once.

        Raises:
            RequestFailed: It was refused, or no server is there any more.
        """
        tries = 0
        while True:
            try:
                for event in self._stream(run_id, after):
                    if event["type"] == "error":
                        raise _Interrupted(str(event["error"].get("message")))
                    tries = 0
                    after = event["sequence_number"]
                    yield event
                    if "run" in event:
                        return
                if self.send("GET", f"/{run_id}")["status"] != "in_progress":
                    return
            except (httpx.HTTPError, httpx.InvalidURL, _Interrupted) as error:
                tries += 1
                if tries >= MAX_TRIES:
                    raise (RequestFailed(str(error)) if isinstance(error, _Interrupted) else self.gone(error)) from None
                time.sleep(0.5 * tries)

    def _stream(self, run_id: str, after: int) -> Iterator[dict[str, Any]]:
        address = self.address(f"/{run_id}/events")
        timeout = httpx.Timeout(30.0, connect=CONNECT_S, read=_READ_S)
        with httpx.stream("GET", address, params={"after": after}, headers=self.headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                answer.read()
                checked(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])
