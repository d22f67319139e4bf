"""Who enters, who yields."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from engine.sequence import Sequence


def preemption_victim(running: Iterable[Sequence], clock: Callable[[str], float]) -> Sequence:
    """The last to go among those of whose account the clock is furthest ahead.

    It has the least to lose of its account's and comes back first of those behind it.

    Args:
        running: Those who run.
        clock: How much of the device an account has had.
    """
    return max(running, key=lambda sequence: (clock(sequence.payer.account), sequence.order))


def spare_pages(num_running: int, num_pages: int) -> int:
    """Pages kept back at admission so that those who run can grow a little before anyone must yield.

    One page each, but at most 2 % of the pool: more would leave memory idle while others wait.
    """
    return min(num_running, num_pages // 50)


def is_ready(sequence: Sequence) -> bool:
    """False while a sequence should wait for another to compute the prompt they share."""
    leader = sequence.leader
    return leader is None or leader.is_finished or leader.num_computed >= leader.num_prompt
