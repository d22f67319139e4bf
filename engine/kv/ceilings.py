"""What accounts may be charged in all and hold at once, and who has come to that."""

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
        self._levels: dict[str, int] = {}
        self._reached_at: dict[str, int] = {}

    def __bool__(self) -> bool:
        """True if there is any."""
        return bool(self._ceilings or self._levels)

    def set(self, ceilings: Mapping[str, int], levels: Mapping[str, int] | None = None) -> None:
        """Changes the ceilings of some accounts.

        Args:
            ceilings: KiB·ms since the engine process began; negative for none.
            levels: KiB at once; negative for any.
        """
        for known, given in ((self._ceilings, ceilings), (self._levels, levels or {})):
            for account, value in given.items():
                if value < 0:
                    known.pop(account, None)
                else:
                    known[account] = value
                if not self.has_reached(account):
                    self._reached_at.pop(account, None)

    def has_reached(self, account: str) -> bool:
        """True if an account may hold no more."""
        ceiling, level = self._ceilings.get(account), self._levels.get(account)
        if ceiling is None and level is None:
            return False
        charge = self._meter.charge(account)
        return (ceiling is not None and charge.total_kib_ms >= ceiling) or (
            level is not None and charge.level_kib >= level
        )

    def reached(self) -> dict[str, bool]:
        """Accounts that have reached theirs, and whether what they run must end. To be asked again and again."""
        now = self._meter.now
        found = {}
        for account in {**self._ceilings, **self._levels}:
            if self.has_reached(account):
                since = self._reached_at.setdefault(account, now)
                found[account] = now - since >= GRACE_MS and self._is_beyond(account)
            else:
                self._reached_at.pop(account, None)
        return found

    def _is_beyond(self, account: str) -> bool:
        """False for who holds as much as it may, and not more: it may go on with that."""
        charge = self._meter.charge(account)
        ceiling, level = self._ceilings.get(account), self._levels.get(account)
        is_spent = ceiling is not None and charge.total_kib_ms >= ceiling
        return is_spent or (level is not None and charge.level_kib > level)
