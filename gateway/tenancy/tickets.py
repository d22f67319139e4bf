"""One admitted request: its slot, what it uses, and the end at which that is settled."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from extensions.output import Usage

_KEY = "wye.ticket"


@dataclass(slots=True)
class Ticket:
    """What one request has been given, and has used. Belongs to one event loop.

    It is open for as long as anybody works for the request: the one who sends the answer, and work in the background.

    Attributes:
        name: Of the request; unique.
        tenant: Who pays.
        key_id: With which key; empty for a request of our own.
        reserved: Tokens taken at admission.
        headers: What the answer tells of limits.
        labels: Names of the model and of the program, for the records of usage.
        used: Counts by name, for the records.
    """

    name: str
    tenant: str
    key_id: str
    reserved: int
    headers: dict[str, str]
    on_close: Callable[[Ticket], None] = field(repr=False)
    labels: tuple[str, str] = ("", "")
    used: dict[str, int] = field(default_factory=dict)
    num_open: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens used so far."""
        return self.used.get("input", 0) + self.used.get("output", 0)

    def enter(self) -> None:
        """Somebody else works for the request too."""
        self.num_open += 1

    def leave(self) -> None:
        """One of those who worked has ended; with the last the request is settled."""
        self.num_open -= 1
        if self.num_open == 0:
            self.on_close(self)

    def note(self, usage: Usage) -> None:
        """Adds what a part of the request has used."""
        self.add("input", usage.num_prompt_tokens)
        self.add("cached", usage.num_cached_tokens)
        self.add("output", usage.num_completion_tokens)

    def add(self, name: str, number: int) -> None:
        """Adds to one count."""
        self.used[name] = self.used.get(name, 0) + number


def ticket_of(scope: MutableMapping[str, Any]) -> Ticket | None:
    """The ticket of a request; None if it is not limited."""
    found = scope.get(_KEY)
    return found if isinstance(found, Ticket) else None


def set_ticket(scope: MutableMapping[str, Any], ticket: Ticket) -> None:
    """Gives a request its ticket."""
    scope[_KEY] = ticket
