"""When a process that died is started again, and when we give up on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """How patient we are.

    Attributes:
        first_delay_s: Wait before the first restart; each further one in a row waits twice as long.
        max_delay_s: Longest wait.
        stable_s: A process that lived this long was healthy: its death counts as the first one again.
        max_quick_deaths: Deaths in a row, each before `stable_s`, after which there is no point in going on.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    stable_s: float = 60.0
    max_quick_deaths: int = 5


class Restarts:
    """Counts the deaths of one process. Time is passed in."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._num_quick = 0

    def delay_s(self, lived_s: float) -> float | None:
        """Notes one death.

        Args:
            lived_s: How long the process had lived.

        Returns:
            Seconds to wait before the next start, or None to give up.
        """
        if lived_s >= self._policy.stable_s:
            self._num_quick = 0
        self._num_quick += 1
        if self._num_quick >= self._policy.max_quick_deaths:
            return None
        return min(self._policy.first_delay_s * 2.0 ** (self._num_quick - 1), self._policy.max_delay_s)
