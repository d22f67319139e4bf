"""How long the steps of a worker's end may take, and so how long whoever waits for it must.

drain_s       requests finish
HAND_OVER_S   what others go on with is written down
FLUSH_S       streams send their last event
FLUSH_S       connections end; after DROP_S they are closed, whatever their clients have not read
CLOSE_S       usage is settled, spans are sent, connections to Redis and the engine are closed
"""

from __future__ import annotations

HAND_OVER_S = 2.0
"""Seconds in which the handing over of runs is over as a rule: effects under way get half a second of it."""

FLUSH_S = 5.0
"""Seconds that streams get to send their last event once the engine's door is closed, and connections to end then."""

DROP_S = 3.0
"""Seconds after a drain in which connections are to end; then they are closed, whatever their clients have not read."""

CLOSE_S = 5.0
"""Seconds for what is closed last."""

WORKER_GRACE_S = HAND_OVER_S + 2 * FLUSH_S + CLOSE_S
"""Seconds beside the drain time in which a worker ends by itself; what has not by then hangs, and is killed."""

ENGINE_GRACE_S = 5.0
"""Seconds in which an engine whose workers have ended ends by itself."""
