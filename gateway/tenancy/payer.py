"""Who pays for the engine's work for a request, and is told what that was."""

from __future__ import annotations

from dataclasses import dataclass, field

from extensions.output import Usage
from gateway.tenancy.principal import ALL_SCOPES
from gateway.tenancy.refusals import missing_scope
from gateway.tenancy.tickets import Ticket


@dataclass(slots=True)
class Payer:
    """Who pays for one piece of work.

    Attributes:
        account: Label that the engine's meter charges.
        salt: Prefix pages are shared only among requests of the same salt: those of one account, unless the request
            narrows that further.
        ticket: Of the request; None if nothing is limited.
        scopes: What the key may do.
    """

    account: str = ""
    salt: str = ""
    ticket: Ticket | None = None
    scopes: str = ALL_SCOPES
    _is_open: bool = field(default=False, init=False)

    def require(self, scope: str) -> None:
        """Does nothing if the key may do what needs `scope`.

        Raises:
            PermissionDenied: It may not.
        """
        if not self.may(scope):
            raise missing_scope(scope)

    def may(self, scope: str) -> bool:
        """Whether the key may do what needs `scope`."""
        return self.scopes == ALL_SCOPES or scope in self.scopes.split()

    def begin(self, model: str = "", program: str = "") -> None:
        """The work has begun; the request is not settled before `end`.

        Args:
            model: Name of the model, for the records of usage.
            program: Name of the program, for the same.
        """
        if self.ticket is not None and not self._is_open:
            self._is_open = True
            self.ticket.labels = (model, program)
            self.ticket.enter()

    def note(self, usage: Usage) -> None:
        """Adds what was used beside the work itself, as by a tool that is a program."""
        if self.ticket is not None:
            self.ticket.note(usage)

    def end(self, usage: Usage) -> None:
        """The work has ended, with all that it has used. Idempotent."""
        if self.ticket is not None and self._is_open:
            self._is_open = False
            self.ticket.note(usage)
            self.ticket.leave()

    def pass_on(self) -> None:
        """The work goes on elsewhere, and all that it has used is paid there. Idempotent."""
        if self.ticket is not None and self._is_open:
            self._is_open = False
            self.ticket.add("requests", -1)
            self.ticket.leave()


def salt_of(account: str, cache_salt: str | None) -> str:
    """The salt of an account's pages; a request's own is mixed in, so that it cannot name another account's."""
    if not account:
        return cache_salt or ""
    return f"{account}\0{cache_salt}" if cache_salt else account
