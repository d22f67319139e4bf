"""Calls of one answer while they are being made: begun once, waited for together, ended with the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from extensions.tools.catalog import REPEATABLE
from gateway.tools.calls import ServerCall
from gateway.tools.making import TurnTools


class CallRunner:
    """Makes calls beside whatever else the answer does.

    Args:
        tools: What they are made with.
    """

    def __init__(self, tools: TurnTools) -> None:
        self._tools = tools
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, call: ServerCall) -> None:
        """Begins a call, unless it has been begun."""
        if call.id not in self._tasks:
            self._tasks[call.id] = asyncio.create_task(self._tools.make(call))

    def has_begun(self, call: ServerCall) -> bool:
        """Whether a call is being made, or has been."""
        return call.id in self._tasks

    def start_early(self, calls: Sequence[ServerCall], room: int) -> None:
        """Begins calls of which it is not sure yet that they are wanted: those that can do no harm.

        Args:
            calls: Whole ones, in the order in which they count.
            room: How many may be made.
        """
        counted = [call for call in calls if not call.offer.needs_approval]
        for call in counted[:room]:
            if call.offer.spec.effect in REPEATABLE:
                self.start(call)

    async def ended(self, calls: Sequence[ServerCall]) -> AsyncIterator[list[ServerCall]]:
        """Begins what has not been begun, and waits for all; gives them as they end."""
        for call in calls:
            self.start(call)
        tasks = {self._tasks[call.id]: call for call in calls}
        waiting = set(tasks)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            yield sorted((tasks[task] for task in done), key=lambda call: call.index)

    async def drop(self, calls: Sequence[ServerCall]) -> None:
        """Gives calls up, whose answers nobody wants."""
        tasks = [task for call in calls if (task := self._tasks.pop(call.id, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def aclose(self) -> None:
        """Gives all calls up. Idempotent."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
