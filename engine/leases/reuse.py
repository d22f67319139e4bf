"""How often what an account keeps is used again, and after how long: what its hints are worth."""

from __future__ import annotations

import math
from dataclasses import dataclass

WEIGHT = 0.98
"""What an observation keeps of the weight of the one before: some fifty count."""
PRIOR = 0.5
"""How many observations it takes to outweigh the belief that hints are true."""
MOST_BELIEVED = 0.9
"""Certainty would never fade, however long the context has not been used."""
DEFAULT_DELAY_MS = 30_000.0
"""How long until a context is used again, before anything is known."""


@dataclass(slots=True)
class _Record:
    claimed: float = 0.0
    came_true: float = 0.0
    num_kept: float = 0.0
    num_reused: float = 0.0
    delay_ms: float = DEFAULT_DELAY_MS


class ReuseHistory:
    """Observations by account; old ones fade."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def note_lease(self, account: str, value: float, *, was_used: bool) -> None:
        """A lease has ended whose holder said that the context is used again with this chance."""
        record = self._record(account)
        record.claimed = record.claimed * WEIGHT + value
        record.came_true = record.came_true * WEIGHT + was_used

    def note_kept(self, account: str, *, was_used: bool, delay_ms: int) -> None:
        """A context was idle for so long, and then used or released."""
        record = self._record(account)
        record.num_kept = record.num_kept * WEIGHT + 1
        record.num_reused = record.num_reused * WEIGHT + was_used
        if was_used:
            record.delay_ms += (max(delay_ms, 1) - record.delay_ms) * (1 - WEIGHT) * 4

    def chance(self, account: str, value: float | None, idle_ms: int) -> float:
        """The chance that a context is used again, and soon.

        Args:
            account: Whose.
            value: What its holder says; None if nobody says anything.
            idle_ms: For how long it has not been used: what is used again is used again early.
        """
        record = self._records.get(account) or _Record()
        if value is None:
            prior = (record.num_reused + 0.5 * PRIOR) / (record.num_kept + PRIOR)
        else:
            prior = min(MOST_BELIEVED, value * (record.came_true + PRIOR) / (record.claimed + PRIOR))
        still_to_come = prior * math.exp(-idle_ms / record.delay_ms)
        return still_to_come / (still_to_come + 1.0 - prior) if still_to_come else 0.0

    def delay_ms(self, account: str) -> float:
        """How long an account usually keeps what it uses again."""
        record = self._records.get(account)
        return DEFAULT_DELAY_MS if record is None else record.delay_ms

    def _record(self, account: str) -> _Record:
        return self._records.setdefault(account, _Record())
