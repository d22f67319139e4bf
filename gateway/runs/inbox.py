"""Input of one detached run, as its program receives it."""

from __future__ import annotations

from collections import deque

from gateway.state.bells import Bells
from gateway.state.owned import told_to_programs
from gateway.state.run_store import RunStore, run_key


class RunInbox:
    """Implements `extensions.programs.doors.Inbox`. What was received stays in the store: nothing is lost on the way.

    Args:
        store: Keeps the input.
        bells: Ring when there is some.
        run_id: Of the run.
        place: Behind what was received before.
    """

    def __init__(self, store: RunStore, bells: Bells, run_id: str, *, place: int = 0) -> None:
        self._store = store
        self._bells = bells
        self._run_id = run_id
        self._place = place
        self._waiting: deque[bytes] = deque()

    async def receive(self, timeout_s: float | None) -> bytes | None:
        """See `Inbox`."""
        return await self._bells.until(run_key(self._run_id), self._look, timeout_s)

    async def _look(self) -> bytes | None:
        if not self._waiting:
            place = self._place
            with told_to_programs("runs"):
                found = await self._store.inputs(self._run_id, place)
            # Somebody else may have looked at the same time.
            if place == self._place:
                self._place += len(found)
                self._waiting += found
        return self._waiting.popleft() if self._waiting else None
