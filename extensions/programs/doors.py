"""What a run needs of the server beyond the model, in the words of programs: the gateway has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from extensions.programs.program import Program


class ProgramSource(Protocol):
    """Which programs a run may start."""

    async def find(self, name: str) -> Program:
        """The program of a name or `name@version`.

        Raises:
            LookupError: There is none (`extension_not_found`).
            RuntimeError: It cannot be looked up now (`store_unavailable`).
            ArgumentsInvalid: The name is none.
            ProgramInvalid: It cannot run any more.
            SandboxUnavailable: It cannot be checked now.
        """
        ...

    async def check(self, source: str) -> Program:
        """A program that the run brings itself.

        Raises:
            ProgramInvalid: It cannot run.
            SandboxUnavailable: It cannot be checked now.
        """
        ...


class ValueStore(Protocol):
    """Values of one owner. All of it raises `RuntimeError` (`store_unavailable`) where the store does not answer."""

    async def get(self, key: str) -> bytes | None:
        """The JSON under a key, or None."""
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float | None, only_new: bool) -> bool:
        """Keeps JSON under a key; false if `only_new` is set and there was something.

        Raises:
            MemoryError: There is no room (`limit_exceeded`).
        """
        ...

    async def add(self, key: str, amount: int | float) -> int | float:
        """Adds to the number under a key, 0 if there is none, and returns the sum.

        Raises:
            MemoryError: There is no room (`limit_exceeded`).
            ValueError: There is something else under the key, or the sum is too large (`invalid_argument`).
        """
        ...

    async def delete(self, key: str) -> bool:
        """Forgets a key; false if there was nothing."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """What a subscriber gets.

    Attributes:
        messages: Oldest first, JSON.
        place: Where to read on.
        missed: Messages before them that were dropped before they were read.
    """

    messages: Sequence[bytes]
    place: str
    missed: int


class Mail(Protocol):
    """Messages of one owner. All of it raises `RuntimeError` (`store_unavailable`) where Redis does not answer."""

    async def publish(self, topic: str, message: bytes) -> None:
        """Tells all subscribers of a topic; the oldest message goes where there are too many.

        Raises:
            MemoryError: The owner has no room for it (`limit_exceeded`).
        """
        ...

    async def newest(self, topic: str) -> str:
        """The place behind the last message of a topic."""
        ...

    async def hear(self, topic: str, place: str, timeout_s: float | None) -> Heard | None:
        """Messages behind a place; None if none came in time."""
        ...

    async def push(self, queue: str, message: bytes, timeout_s: float | None) -> None:
        """Adds to a queue, after waiting for room for so long. Cancelled, it has sent nothing.

        Raises:
            MemoryError: It stayed full, or the owner has no room for it (`limit_exceeded`).
        """
        ...

    async def pull(self, queue: str, timeout_s: float | None) -> bytes | None:
        """Takes the oldest message of a queue; None if none came in time."""
        ...


class Inbox(Protocol):
    """Input of one run, in the order in which it came."""

    async def receive(self, timeout_s: float | None) -> bytes | None:
        """The next input as JSON; None if none came in time.

        Raises:
            RuntimeError: The store does not answer (`store_unavailable`).
        """
        ...
