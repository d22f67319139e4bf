"""Every live sequence: by request, waiting or running, with its row of device state."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator

from engine.sequence import Sequence, SequenceStatus


class Roster:
    """Membership alone; pages and steps are the scheduler's business.

    Attributes:
        num_rows: How many may run at once.
        waiting: In the order they may enter.
        running: In the order they entered the engine.
        accounts: Live sequences by account.
        rows_of: Running sequences by account.
        released_rows: Rows given up since the last call of `take_released_rows`.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.accounts: Counter[str] = Counter()
        self.rows_of: Counter[str] = Counter()
        self._paused: set[Sequence] = set()
        self._requests: dict[str, list[Sequence]] = {}
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._released_rows: list[int] = []

    @property
    def has_work(self) -> bool:
        """True if somebody lives who is not paused."""
        return len(self.waiting) + len(self.running) > len(self._paused)

    @property
    def has_free_row(self) -> bool:
        """True if one more may run."""
        return bool(self._free_rows)

    @property
    def num_free_rows(self) -> int:
        """How many more may run."""
        return len(self._free_rows)

    def of_request(self, request_id: str) -> list[Sequence]:
        """Its live sequences; empty if there are none."""
        return list(self._requests.get(request_id, ()))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def __iter__(self) -> Iterator[Sequence]:
        for sequences in self._requests.values():
            yield from sequences

    def add(self, sequences: list[Sequence]) -> None:
        """Lets a request's sequences wait."""
        self._requests[sequences[0].request.request_id] = list(sequences)
        self.accounts[sequences[0].payer.account] += len(sequences)
        for sequence in sequences:
            self._wait(sequence)

    def start(self, sequence: Sequence) -> int:
        """Moves one from waiting to running and gives it a row."""
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=_order)
        sequence.status = SequenceStatus.RUNNING
        sequence.row = self._free_rows.pop()
        self.rows_of[sequence.payer.account] += 1
        return sequence.row

    def pause(self, sequence: Sequence) -> None:
        """One has nothing to do until it is told to go on."""
        self._paused.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """It goes on."""
        self._paused.discard(sequence)

    def is_paused(self, sequence: Sequence) -> bool:
        """True until it is told to go on."""
        return sequence in self._paused

    def last_paused(self) -> Sequence | None:
        """Of those who are paused and have pages, the last to go."""
        running = [sequence for sequence in self._paused if sequence.is_running]
        return max(running, key=_order) if running else None

    def suspend(self, sequence: Sequence) -> None:
        """Moves one from running back to waiting, at its old place."""
        self._stop(sequence)
        self._wait(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets one for good."""
        if sequence.status is SequenceStatus.RUNNING:
            self._stop(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED
        self._paused.discard(sequence)
        siblings = self._requests[sequence.request.request_id]
        siblings.remove(sequence)
        account = sequence.payer.account
        self.accounts[account] -= 1
        if not self.accounts[account]:
            del self.accounts[account]
        if not siblings:
            del self._requests[sequence.request.request_id]

    def take_released_rows(self) -> list[int]:
        """Rows given up since the last call."""
        rows, self._released_rows = self._released_rows, []
        return rows

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.WAITING
        bisect.insort(self.waiting, sequence, key=_order)

    def _stop(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self.running.remove(sequence)
        self._free_rows.append(sequence.row)
        self._released_rows.append(sequence.row)
        sequence.row = None
        self.rows_of[sequence.payer.account] -= 1
        if not self.rows_of[sequence.payer.account]:
            del self.rows_of[sequence.payer.account]


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
