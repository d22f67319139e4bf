"""What programs of an owner reach of each other: values, messages, other programs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from extensions.programs.doors import Inbox
from extensions.programs.faults import fault
from extensions.programs.program import Program
from extensions.programs.world import World
from gateway.errors import NotFound, StoreUnavailable
from gateway.programs.finding import ProgramFinder
from gateway.state.bells import Bells
from gateway.state.run_mail import ProgramMail
from gateway.state.run_values import ProgramValues


class OwnerPrograms:
    """Implements `extensions.programs.doors.ProgramSource`: what an owner has registered, and what comes with Wye.

    Args:
        finder: Which there are.
        owner: Whose.
    """

    def __init__(self, finder: ProgramFinder, owner: str) -> None:
        self._finder = finder
        self._owner = owner

    async def find(self, name: str) -> Program:
        """See `ProgramSource`."""
        try:
            return (await self._finder.look_up(name, self._owner, "name")).program
        except NotFound as error:
            raise fault("extension_not_found", error.message) from None
        except StoreUnavailable as error:
            raise fault("store_unavailable", error.message) from None

    async def check(self, source: str) -> Program:
        """See `ProgramSource`."""
        return await self._finder.check(source)


@dataclass(frozen=True, kw_only=True, slots=True)
class Doors:
    """What one gateway process has for all programs.

    Attributes:
        finder: Which programs there are.
        bells: Ring for who waits; None without a Redis.
        values: What programs keep; None without a Redis.
        mail: What they send each other; None without a Redis.
    """

    finder: ProgramFinder
    bells: Bells | None = None
    values: ProgramValues | None = None
    mail: ProgramMail | None = None

    def open(self, world: World, owner: str, inbox: Inbox | None) -> World:
        """The same world with these doors, for programs of an owner."""
        return replace(
            world,
            children=OwnerPrograms(self.finder, owner),
            values=None if self.values is None else self.values.of(owner),
            mail=None if self.mail is None else self.mail.of(owner),
            inbox=inbox,
        )

    async def aclose(self) -> None:
        """Closes the connections. Idempotent."""
        if self.values is not None:
            await self.values.aclose()
        if self.mail is not None:
            await self.mail.aclose()
        if self.bells is not None:
            await self.bells.aclose()
