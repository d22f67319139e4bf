"""In which order the passes of a pipeline run: those that change contexts one after the other, looks side by side.

    submitted   change  look  look  look  change  look
    waits for     -      \\_____|_____/      |      |
                     the change before   all looks  the change before

Looks do not need each other's results, so all that are there at once go to the engine together, which computes them in
the same steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Begin = Callable[[Coroutine[Any, Any, T]], "asyncio.Task[T]"]


class PassOrder:
    """What has been submitted to one pipeline, as far as something may yet wait for it."""

    def __init__(self) -> None:
        self._change: asyncio.Task[Any] | None = None
        self._looks: list[asyncio.Task[Any]] = []

    def add(self, begin: Begin[T], work: Callable[[], Coroutine[Any, Any, T]], *, is_look: bool) -> asyncio.Task[T]:
        """Begins work once that has ended which it must follow; where that has failed, it fails with the same error.

        Args:
            begin: Starts a task.
            work: Makes what is to be done.
            is_look: It changes no context.
        """
        before: list[asyncio.Task[Any]] = [] if self._change is None else [self._change]
        if is_look:
            self._looks = [one for one in self._looks if not _has_succeeded(one)]
        else:
            before += self._looks
            self._looks = []
        task = begin(_behind(before, work))
        if is_look:
            self._looks.append(task)
        else:
            self._change = task
        return task

    def forgive(self, task: asyncio.Task[Any]) -> None:
        """What follows need not fail with a change that has failed: the script knows of it."""
        if self._change is task:
            self._change = None


async def _behind(before: Sequence[Awaitable[Any]], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    for one in before:
        await asyncio.shield(one)
    return await work()


def _has_succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
