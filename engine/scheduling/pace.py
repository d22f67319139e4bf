"""How long steps may take while somebody who has had less of the device may ask for it at any moment.

Whoever asks waits for the step that runs. So accounts with such a rival get short steps: some of their lanes, taking
turns, and then as much of their prompts as there is time for. How many tokens that comes to is found by trying: fewer
after a step that took too long, more after one that took less. Where all of them fit anyway, as on a fast device,
nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from engine.leases.costs import RestoreCosts
from engine.scheduling.batch import Batch
from engine.scheduling.shares import FairShares
from engine.sequence import Sequence

RIVAL_STEP_S = 0.03
"""How long a step may take while somebody else may want the device at any moment."""
PROMPT_PART = 0.4
"""Of its tokens for prompts, if there are any to compute."""
MIN_PROMPT_TOKENS = 16
MIN_LANES = 8
"""What accounts get of a step however long that takes: less would cost more than it saves the others."""
ALONE_S = 0.015
"""Steps that take longer are not scheduled before the one before them has ended: whoever asks would wait for both."""

_STEP = 1.1
"""By how much a step differs in size from the one before it that took too long, or not as long as it might."""


class Pace:
    """Decides for one step after the other.

    Args:
        shares: Who has had how much.
        costs: What a prompt token takes.

    Attributes:
        prompt_left: Prompt tokens that accounts with a rival may still compute in this step, all together.
    """

    def __init__(self, shares: FairShares, costs: RestoreCosts) -> None:
        self._shares = shares
        self._costs = costs
        self.prompt_left = 0
        self._slowed: frozenset[str] = frozenset()
        self._num_tokens = 0.0
        self._step_s = 0.0
        self._turn = 0
        self._num_lanes = 0

    @property
    def waits(self) -> bool:
        """True if the next step is to be scheduled when the one before it has ended, for those who ask meanwhile."""
        return bool(self._slowed) and self._step_s > ALONE_S

    def begin(self, running: Iterable[str], now_ms: int) -> bool:
        """A step is to be scheduled; returns whether it must be short.

        Args:
            running: Accounts that have sequences running.
            now_ms: The meter's time.
        """
        self._num_lanes = 0
        self._slowed = frozenset(account for account in running if self._shares.has_rival(account, now_ms))
        return bool(self._slowed)

    def slows(self, account: str) -> bool:
        """Whether an account has a rival in this step."""
        return account in self._slowed

    def hold_back(
        self, running: Iterable[Sequence], rows: Mapping[str, int], *, has_prompts: bool
    ) -> frozenset[Sequence]:
        """Those of a short step's sequences whose turn it is not.

        Args:
            running: All that run.
            rows: How many those are, by account.
            has_prompts: Whether somebody waits for a prompt to be computed.
        """
        crowds = {account for account in self._slowed if rows[account] > MIN_LANES}
        decoding = [one for one in running if one.payer.account in crowds and one.group is None]
        decoding = [one for one in decoding if one.num_pending == 1]
        count = max(MIN_LANES, int(self._most() * (1.0 - PROMPT_PART if has_prompts else 1.0)))
        self._num_lanes = min(count, len(decoding))
        if count >= len(decoding):
            return frozenset()
        first = self._turn % len(decoding)
        self._turn = first + count
        return frozenset([*decoding[max(0, first + count - len(decoding)) : first], *decoding[first + count :]])

    def may_compute(self, account: str) -> bool:
        """False if an account's part of a short step is used up."""
        return self.prompt_left > 0 or not self.slows(account)

    def allow_prompts(self, most: int) -> None:
        """Sets what a short step has left for prompts beside its lanes, at most so many tokens."""
        self.prompt_left = min(most, max(MIN_PROMPT_TOKENS, int(self._most()) - self._num_lanes))

    def note(self, batch: Batch, seconds: float) -> None:
        """A step took so long."""
        self._step_s = seconds
        if not self._num_tokens or batch.num_tokens < MIN_LANES:
            return
        if not all(self.slows(lane.sequence.payer.account) for lane in batch.lanes if lane.num_tokens > 1):
            return  # how long somebody else's prompt took
        if seconds > RIVAL_STEP_S * _STEP:
            self._num_tokens = max(float(MIN_LANES), self._num_tokens / _STEP)
        elif seconds < RIVAL_STEP_S / _STEP and batch.num_tokens >= self._num_tokens / _STEP:
            self._num_tokens *= _STEP

    def _most(self) -> float:
        """Tokens of a short step."""
        if not self._num_tokens:
            self._num_tokens = RIVAL_STEP_S / self._costs.compute_s(0, 1)
        return self._num_tokens
