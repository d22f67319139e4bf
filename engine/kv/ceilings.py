"""What accounts may be charged in all, and who has come to that."""

from __future__ import annotations

from collections.abc import Mapping

from engine.kv.meter import KVMeter

NO_CEILING = -1
GRACE_MS = 1000
"""How long an account at its ceiling may go on with what it runs: a heartbeat, in which its ceiling can be raised."""


class Ceilings:
    """Ceilings by account, set from outside; an account without one may be charged without end.

    Args:
        meter: Knows what accounts were charged.
    """

    def __init__(self, meter: KVMeter) -> None:
        self._meter = meter
        self._ceilings: dict[str, int] = {}
        self._reached_at: dict[str, int] = {}

    def __bool__(self) -> bool:
        """True if there is any."""
        return bool(self._ceilings)

    def set(self, ceilings: Mapping[str, int]) -> None:
        """Changes the ceilings of some accounts, in KiB·ms since the engine process began; negative for none."""
        for account, ceiling in ceilings.items():
            if ceiling < 0:
                self._ceilings.pop(account, None)
            else:
                self._ceilings[account] = ceiling
            if not self.has_reached(account):
                self._reached_at.pop(account, None)

    def has_reached(self, account: str) -> bool:
        """True if an account may hold no more."""
        ceiling = self._ceilings.get(account)
        return ceiling is not None and self._meter.charge(account).total_kib_ms >= ceiling

    def reached(self) -> dict[str, bool]:
        """Accounts that have reached theirs, and whether their grace is over. To be asked again and again."""
        now = self._meter.now
        found = {}
        for account in self._ceilings:
            if self.has_reached(account):
                since = self._reached_at.setdefault(account, now)
                found[account] = now - since >= GRACE_MS
        return found
