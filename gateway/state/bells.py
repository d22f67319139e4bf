"""News of what changed in Redis, for whoever waits for it in this process: one connection, however many wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar

from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from extensions.programs.faults import code_of
from gateway.state.link import connect_listener
from gateway.state.store import PREFIX
from gateway.state.tasks import end_task

log = logging.getLogger(__name__)

T = TypeVar("T")

CHANNEL = f"{PREFIX}bell"
"""Scripts publish here the name of what they have changed."""

LOOK_S = 2.0
"""Whoever waits looks again after so long, whether a bell rang or not."""

PATIENCE_S = 20.0
"""Whoever waits does so through an absence of Redis that is no longer than this."""

RETRY_S = 0.25
_TIMEOUT_S = 5.0


class _Patient(Generic[T]):
    """Looks; finds nothing while Redis is away."""

    def __init__(self, look: Callable[[], Awaitable[T | None]]) -> None:
        self._look = look
        self._away_s: float | None = None

    async def __call__(self) -> T | None:
        try:
            found = await self._look()
        except RuntimeError as error:
            now_s = time.monotonic()
            self._away_s = now_s if self._away_s is None else self._away_s
            if code_of(error) != "store_unavailable" or now_s - self._away_s > PATIENCE_S:
                raise
            return None
        self._away_s = None
        return found


class Bells:
    """Rings for names. Belongs to one event loop; connects when somebody first listens.

    A bell that is not heard costs nothing but time: after every loss of the connection all bells ring, and whoever
    listens looks again.

    Args:
        url: Of a Redis.
    """

    def __init__(self, url: str) -> None:
        self._redis = connect_listener(url)
        self._bells: dict[str, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None
        self._is_heard = asyncio.Event()

    async def start(self) -> None:
        """Waits until bells are heard, if that does not take long: what rings from then on is not missed."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._is_heard.wait()

    @contextlib.contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever the bell of this name rings; clear it before looking."""
        event = asyncio.Event()
        self._bells.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            self._bells[name].discard(event)
            if not self._bells[name]:
                del self._bells[name]

    async def until(self, name: str, look: Callable[[], Awaitable[T | None]], timeout_s: float | None) -> T | None:
        """What `look` finds, as soon as it finds something; None after the time, which None does not bound.

        Args:
            name: Of the bell that rings when there may be something.
            look: Looks; raises what this raises, but that an absence of Redis is waited for, unless it is long.
            timeout_s: How long to wait; 0 looks once.
        """
        if timeout_s == 0:
            return await look()
        look = _Patient(look)
        if (found := await look()) is not None:
            return found
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        await self.start()
        with self.listening(name) as bell:
            while True:
                bell.clear()
                if (found := await look()) is not None:
                    return found
                left_s = LOOK_S if end_s is None else min(end_s - time.monotonic(), LOOK_S)
                if left_s <= 0:
                    return None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await bell.wait()

    @property
    def num_listening(self) -> int:
        """Who listens now."""
        return sum(map(len, self._bells.values()))

    async def aclose(self) -> None:
        """Ends. Idempotent."""
        await end_task(self._listening)
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()

    async def _listen(self) -> None:
        while True:
            pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(CHANNEL)
                self._is_heard.set()
                self._ring_all()
                await self._read(pubsub)
            except (RedisError, OSError, TimeoutError) as error:
                log.warning("news of programs are not heard: %r", error)
            finally:
                self._is_heard.clear()
                with contextlib.suppress(RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(RETRY_S)

    async def _read(self, pubsub: PubSub) -> None:
        while True:
            message = await pubsub.get_message(timeout=_TIMEOUT_S)
            if message is not None:
                for event in self._bells.get(message["data"].decode(), ()):
                    event.set()

    def _ring_all(self) -> None:
        for events in self._bells.values():
            for event in events:
                event.set()
