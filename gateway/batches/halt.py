"""Why work on a batch has to end before all of it is done."""

from __future__ import annotations

import asyncio
from typing import Literal

Reason = Literal["drain", "expired", "cancelled", "stopped", "lost"]
_RANKS: dict[Reason, int] = {"drain": 1, "expired": 2, "cancelled": 2, "stopped": 3, "lost": 4}


class Halt:
    """Asked for once or more; the strongest reason counts, the first of those that are equally strong.

    Attributes:
        reason: None while work may go on.
        soft: Set when nothing new may be begun.
        hard: Set when what has been begun is to be ended too.
    """

    def __init__(self) -> None:
        self.reason: Reason | None = None
        self.soft = asyncio.Event()
        self.hard = asyncio.Event()

    def ask(self, reason: Reason) -> None:
        """Asks to end.

        Args:
            reason: `drain` lets what has been begun come to its end; all others do not.
        """
        if self.reason is None or _RANKS[reason] > _RANKS[self.reason]:
            self.reason = reason
        self.soft.set()
        if reason != "drain":
            self.hard.set()

    async def pause(self, seconds: float) -> bool:
        """Waits; True if asked to begin nothing new meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self.soft.wait()
        except TimeoutError:
            return False
        return True
