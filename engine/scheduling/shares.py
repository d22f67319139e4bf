"""How accounts share the device: weighted fair queueing by the time that their lanes took.

Every account has a clock that runs with the time its lanes take, slower the more it weighs; whose clock is behind goes
first. Who comes back after a pause begins a moment behind the slowest of the others, however long it was away: it is
answered at once, and nobody saves up a claim. How many requests an account splits its work into is no matter: they all
move the same clock.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as ListOf

from engine.scheduling.batch import Lane
from engine.sequence import Sequence

RIVAL_MS = 60_000
"""For how long an account that asked for something counts as one that may ask again at any moment."""
CREDIT_S = 0.25
"""How much of the device whoever comes back may have before the others: what a short question takes."""
MAX_REMEMBERED = 4096
"""Accounts whose clocks are kept although they want nothing at the moment."""


class FairShares:
    """Clocks and weights by account. Where only one account wants the device, none of it matters."""

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._clocks: dict[str, float] = {}
        self._token_s = 0.0
        self._seen: dict[str, int] = {}

    def set_weights(self, weights: Mapping[str, float]) -> None:
        """Takes over the weights of accounts; one that is not named, or not positive, weighs 1."""
        self._weights = {account: weight for account, weight in weights.items() if weight > 0}

    def weight(self, account: str) -> float:
        """How much an account counts among others."""
        return self._weights.get(account, 1.0)

    def clock(self, account: str) -> float:
        """How much of the device an account has had, for its weight."""
        return self._clocks.get(account, 0.0)

    def part(self, account: str, accounts: Iterable[str]) -> float:
        """The part of anything that is an account's own, 0..1, if those accounts, itself included, want it."""
        return self.weight(account) / sum(self.weight(other) for other in accounts)

    def join(self, account: str, others: Iterable[str], now_ms: int) -> None:
        """An account that wanted nothing wants something again."""
        self._seen = {one: at for one, at in self._seen.items() if now_ms - at < RIVAL_MS}
        behind = min((self.clock(other) for other in others), default=None)
        if behind is None:
            self._clocks = {account: 0.0} if len(self._clocks) > MAX_REMEMBERED else self._clocks
        else:
            self._clocks[account] = max(self.clock(account), behind - CREDIT_S / self.weight(account))

    def note(self, account: str, now_ms: int) -> None:
        """An account asks for something."""
        self._seen[account] = now_ms

    def urgent(self, waiting: Iterable[str], rows: Mapping[str, int]) -> frozenset[str]:
        """Of the accounts that wait, those that come before all: they have had no more than any other that runs.

        Only an account that runs less than another is one of them: whoever runs most has asked for much.

        Args:
            waiting: Accounts.
            rows: Sequences that run, by account.
        """
        least = min((self.clock(account) for account in rows), default=0.0)
        most = max(rows.values(), default=0)
        return frozenset(one for one in waiting if rows.get(one, 0) < most and self.clock(one) <= least)

    def has_rival(self, account: str, now_ms: int) -> bool:
        """True if another account, which has had less, wants something now or did lately and may at any moment."""
        clock = self.clock(account)
        return any(
            self.clock(other) < clock for other, at in self._seen.items() if other != account and now_ms - at < RIVAL_MS
        )

    def charge(self, lanes: ListOf[Lane], seconds: float, accounts: Mapping[str, int]) -> None:
        """A step took so long for these lanes: shared out by tokens.

        Args:
            lanes: Of the step.
            seconds: How long it took.
            accounts: Those that have sequences now; where that is one alone, all of it is taken to be its own.
        """
        if len(accounts) == 1:
            (account,) = accounts
            self._clocks[account] = self.clock(account) + seconds / self.weight(account)
            return
        tokens = Counter[str]()
        for lane in lanes:
            tokens[lane.sequence.payer.account] += lane.num_tokens
        num_tokens = tokens.total()
        if not num_tokens:
            return
        self._token_s = seconds / num_tokens
        for account, count in tokens.items():
            self._clocks[account] = self.clock(account) + self._token_s * count / self.weight(account)

    def order(self, sequences: ListOf[Sequence]) -> Iterator[Sequence]:
        """Sequences of several accounts in the order in which they should go; each account's own stay in theirs."""
        queues: dict[str, deque[Sequence]] = {}
        for sequence in sequences:
            queues.setdefault(sequence.payer.account, deque()).append(sequence)
        heap = [(self.clock(account), account) for account in queues]
        heapq.heapify(heap)
        while heap:
            clock, account = heap[0]
            queue = queues[account]
            sequence = queue.popleft()
            yield sequence
            if queue:
                cost = len(sequence.token_ids) * self._token_s / self.weight(account)
                heapq.heapreplace(heap, (clock + cost, account))
            else:
                heapq.heappop(heap)

    def most_over(self, held: Mapping[str, int], capacity: int, accounts: Iterable[str]) -> str | None:
        """Who holds most beyond its part of something, which is one at least; None if nobody does.

        Args:
            held: How much accounts hold.
            capacity: How much there is.
            accounts: Those who want it.
        """
        accounts = list(accounts)
        excess = {account: held[account] / max(1.0, capacity * self.part(account, accounts)) for account in held}
        worst = max(excess, key=lambda account: excess[account], default=None)
        return worst if worst is not None and excess[worst] > 1.0 else None
