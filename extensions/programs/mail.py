"""Messages between programs of one owner: topics that all subscribers hear, queues that one puller takes from."""

from __future__ import annotations

import json
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from extensions.programs.doors import Mail
from extensions.programs.faults import fault
from extensions.programs.jsons import checked_name, encoded, seconds

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

MAX_MESSAGE_BYTES = 64 * 2**10
"""Largest message, as JSON."""


class ScriptSubscription:
    """A topic as one subscriber hears it; see `Subscription` in the stubs.

    Attributes:
        topic: Its name.
        missed: Messages that were dropped before they were read.
    """

    def __init__(self, mail: Mail, topic: str, place: str) -> None:
        self.topic = topic
        self.missed = 0
        self._mail = mail
        self._place = place
        self._waiting: deque[bytes] = deque()

    async def next(self, timeout_s: float | None = None) -> Any:
        """Waits for the next message."""
        limit_s = seconds(timeout_s, "timeout_s")
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while not self._waiting:
            left_s = None if end_s is None else max(end_s - time.monotonic(), 0.0)
            asked_from = self._place
            heard = await self._mail.hear(self.topic, asked_from, left_s)
            # Of two that wait at once, one may hear more than the other: whoever is second asks on from the new place.
            if self._place != asked_from:
                continue
            if heard is None:
                raise fault("receive_timeout", f"no message came on {self.topic!r} in {limit_s:g} s")
            self._place = heard.place
            self.missed += heard.missed
            self._waiting += heard.messages
        return json.loads(self._waiting.popleft())


class MailCalls:
    """What `lm` can do with messages."""

    _scope: RunScope

    async def publish(self, topic: str, data: Any) -> None:
        """Tells all that subscribe to a topic."""
        await self._mail.publish(checked_name(topic, "topic"), encoded(data, "data", MAX_MESSAGE_BYTES))

    async def subscribe(self, topic: str) -> ScriptSubscription:
        """Hears a topic from now on."""
        mail, name = self._mail, checked_name(topic, "topic")
        return ScriptSubscription(mail, name, await mail.newest(name))

    async def push(self, queue: str, data: Any, *, timeout_s: float | None = 0.0) -> None:
        """Adds to a queue."""
        limit_s = seconds(timeout_s, "timeout_s")
        await self._mail.push(checked_name(queue, "queue"), encoded(data, "data", MAX_MESSAGE_BYTES), limit_s)

    async def pull(self, queue: str, *, timeout_s: float | None = None) -> Any:
        """Takes from a queue."""
        limit_s = seconds(timeout_s, "timeout_s")
        found = await self._mail.pull(checked_name(queue, "queue"), limit_s)
        if found is None:
            raise fault("receive_timeout", f"no message came in {queue!r} in {limit_s:g} s")
        return json.loads(found)

    @property
    def _mail(self) -> Mail:
        mail = self._scope.world.mail
        if mail is None:
            raise fault("capability_missing", "programs cannot send messages here: the server has no Redis")
        return mail
