"""What a run that keeps a journal reaches of other programs and of its client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extensions.journal.effects import effect
from extensions.journal.tools import JournaledTools
from extensions.programs.doors import Heard, Inbox, Mail, ValueStore
from extensions.programs.world import World


def journaled(world: World) -> World:
    """The same world for a run that keeps a journal."""
    return replace(
        world,
        tools=None if world.tools is None else JournaledTools(world.tools),
        values=None if world.values is None else JournaledValues(world.values),
        mail=None if world.mail is None else JournaledMail(world.mail),
        inbox=None if world.inbox is None else JournaledInbox(world.inbox),
    )


class JournaledValues:
    """Implements `extensions.programs.doors.ValueStore` around another.

    Args:
        values: The other.
    """

    def __init__(self, values: ValueStore) -> None:
        self._values = values

    async def get(self, key: str) -> bytes | None:
        """See `ValueStore.get`."""
        return await effect("value", ["get", key], lambda: self._values.get(key))

    async def put(self, key: str, value: bytes, *, ttl_s: float | None, only_new: bool) -> bool:
        """See `ValueStore.put`."""
        return await effect(
            "value",
            ["put", key, value, ttl_s, only_new],
            lambda: self._values.put(key, value, ttl_s=ttl_s, only_new=only_new),
            is_once=only_new,
        )

    async def add(self, key: str, amount: int | float) -> int | float:
        """See `ValueStore.add`."""
        return await effect("value", ["add", key, amount], lambda: self._values.add(key, amount), is_once=True)

    async def delete(self, key: str) -> bool:
        """See `ValueStore.delete`."""
        return await effect("value", ["delete", key], lambda: self._values.delete(key))


class JournaledMail:
    """Implements `extensions.programs.doors.Mail` around another.

    Args:
        mail: The other.
    """

    def __init__(self, mail: Mail) -> None:
        self._mail = mail

    async def publish(self, topic: str, message: bytes) -> None:
        """See `Mail.publish`."""
        await effect("message", ["publish", topic, message], lambda: self._mail.publish(topic, message), is_once=True)

    async def newest(self, topic: str) -> str:
        """See `Mail.newest`."""
        return await effect("message", ["newest", topic], lambda: self._mail.newest(topic))

    async def hear(self, topic: str, place: str, timeout_s: float | None) -> Heard | None:
        """See `Mail.hear`."""
        return await effect(
            "message",
            ["hear", topic, place],
            lambda: self._mail.hear(topic, place, timeout_s),
            waits=True,
            pack=_pack_heard,
            unpack=_unpack_heard,
        )

    async def push(self, queue: str, message: bytes, timeout_s: float | None) -> None:
        """See `Mail.push`."""
        await effect(
            "message",
            ["push", queue, message],
            lambda: self._mail.push(queue, message, timeout_s),
            is_once=True,
            waits=True,
        )

    async def pull(self, queue: str, timeout_s: float | None) -> bytes | None:
        """See `Mail.pull`."""
        return await effect(
            "message", ["pull", queue], lambda: self._mail.pull(queue, timeout_s), is_once=True, waits=True
        )


class JournaledInbox:
    """Implements `extensions.programs.doors.Inbox` around another, which begins behind what was received before.

    Args:
        inbox: The other.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    async def receive(self, timeout_s: float | None) -> bytes | None:
        """See `Inbox.receive`."""
        return await effect(RECEIVED, None, lambda: self._inbox.receive(timeout_s), waits=True)


RECEIVED = "input"
"""Kind of what a client said, in a journal; see `Replay.num_done`."""


def _pack_heard(heard: Heard | None) -> Any:
    return None if heard is None else [list(heard.messages), heard.place, heard.missed]


def _unpack_heard(data: Any) -> Heard | None:
    return None if data is None else Heard(messages=data[0], place=data[1], missed=data[2])
