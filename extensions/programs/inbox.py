"""What a client says to a program that runs already."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from extensions.programs.faults import fault
from extensions.programs.jsons import seconds

if TYPE_CHECKING:
    from extensions.programs.scope import RunScope


class InboxCalls:
    """What `lm` can do with input."""

    _scope: RunScope

    async def receive(self, timeout_s: float | None = None) -> Any:
        """Waits for the client's next input."""
        limit_s, inbox = seconds(timeout_s, "timeout_s"), self._scope.world.inbox
        if inbox is None:
            raise fault("receive_timeout", "no input can come: the program is not a run of /v1/runs")
        found = await inbox.receive(limit_s)
        if found is None:
            raise fault("receive_timeout", f"no input came in {limit_s:g} s")
        return json.loads(found)
