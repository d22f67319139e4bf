"""Requests of this process to itself: the whole application, all of its middleware, and no network between."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from gateway.caller import Caller, with_caller

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Answer:
    """What a request was answered.

    Attributes:
        status: HTTP status.
        request_id: Under which logs know it.
        body: All of it.
    """

    status: int = 500
    request_id: str = ""
    body: bytearray = field(default_factory=bytearray)


class LocalCalls:
    """Makes requests to an application as a server does.

    Args:
        app: That of this process.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def post(self, path: str, body: bytes, caller: Caller, gone: asyncio.Event) -> Answer:
        """Sends JSON and waits for the whole answer.

        Args:
            path: Of the endpoint.
            body: JSON.
            caller: For whom.
            gone: Set when nobody wants the answer any more: what a client does that closes its connection.
        """
        answer = Answer()
        is_sent = False

        async def receive() -> Message:
            nonlocal is_sent
            if not is_sent:
                is_sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.request_id = dict(message["headers"]).get(b"x-request-id", b"").decode("ascii")
            else:
                answer.body += message.get("body", b"")

        try:
            await self._app(_scope(path, len(body), caller), receive, send)
        except Exception:
            # The application has told its log; a server would close the connection here.
            log.debug("a request of our own failed", exc_info=True)
            return Answer(status=500, request_id=answer.request_id)
        return answer


def _scope(path: str, num_bytes: int, caller: Caller) -> dict[str, Any]:
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(num_bytes).encode())],
        "client": None,
        "server": None,
    }
    return with_caller(scope, caller)
