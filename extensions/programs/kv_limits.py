"""Limits of KV: what a run and the programs that it starts hold at once, and what they were charged in all.

The engine alone knows both, so it is asked from time to time, by runs that have such a limit or whose parents have one,
and once more when a program has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engine.errors import EngineStopped
from extensions.programs.faults import RunEnded

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope

INTERVAL_S = 0.2
"""How often it is asked; a run may be over a limit for so long."""


@asynccontextmanager
async def kv_limited(scope: RunScope) -> AsyncIterator[None]:
    """Ends the run in its body at a limit of KV; does nothing where there is none.

    Raises:
        RunEnded: It had reached one when the body ended.
    """
    guard = scope.guard
    if not guard.limits_kv:
        yield
        return
    watch = asyncio.create_task(_watch(scope))
    try:
        yield
        await _look(scope)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        guard.note_no_kv()


async def _watch(scope: RunScope) -> None:
    while True:
        await asyncio.sleep(INTERVAL_S)
        try:
            await _look(scope)
        except RunEnded:
            return


async def _look(scope: RunScope) -> None:
    try:
        num_bytes, kib_ms = await scope.held_kv()
    except EngineStopped:
        return  # which ends the run by itself
    scope.guard.note_kv(num_bytes, kib_ms)
