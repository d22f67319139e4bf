"""Tasks that talk to Redis, ended."""

from __future__ import annotations

import asyncio
from typing import Any

_AGAIN_S = 0.1


async def end_task(task: asyncio.Task[Any] | None) -> None:
    """Cancels a task until it ends: Redis's client can swallow a cancellation that comes while a command is sent."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_S)
