"""Why `wye serve` could not start or go on; the messages are for people.

ServeError
├── AddressUnavailable   host and port cannot be listened on; nothing was started
├── UnfitStore           the Redis that was named cannot be used, see `gateway.state.probe`; nothing was started
└── GaveUp               engine or worker died too often, or while starting; all was stopped
"""

from __future__ import annotations

EXIT_BAD_MODEL = 6
"""Exit code of `wye`, and of a worker, for a model that cannot be used."""


class ServeError(Exception):
    """Root of what the supervisor raises of its own."""


class AddressUnavailable(ServeError):
    """The address cannot be listened on; the message says why and what to do."""


class GaveUp(ServeError):
    """A process died too often, or could not be started at all."""
