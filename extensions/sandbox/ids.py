"""Random ids of handles, drawn many at a time: asking the kernel for each costs more than all else about a handle."""

from __future__ import annotations

import os
from uuid import UUID

_AT_ONCE = 64

_drawn: list[UUID] = []


def random_id() -> UUID:
    """As `uuid.uuid4`. May be called in any thread."""
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            data = os.urandom(16 * _AT_ONCE)
            _drawn.extend([UUID(bytes=data[at : at + 16], version=4) for at in range(0, len(data), 16)])
