"""How sequences give up their place for others: row and pages go, the tokens they know stay.

    park        one that is paused, at no cost to it: its context has the pages until somebody needs those too
    preempt     one that would rather go on; its pages go to the prefix cache, and it computes again what is lost there

Either way it waits at its old place, and enters as if it had never run.
"""

from __future__ import annotations

from collections.abc import Container

from engine.contexts.registry import ContextRegistry
from engine.scheduling.batch import Batch
from engine.scheduling.finishing import Finishing
from engine.scheduling.floors import Floors
from engine.scheduling.policy import preemption_victim
from engine.scheduling.roster import Roster
from engine.scheduling.shares import FairShares
from engine.scheduling.stepping import Stepping
from engine.sequence import Sequence
from engine.stats import EngineStats


class Yielding:
    """Takes running sequences out again, those with the weakest claim first.

    Args:
        roster: Who runs.
        contexts: Have the pages of those who were taken out.
        shares: Who has had how much of the device.
        floors: Who has more than its part.
        stepping: Pauses those that have a proposal, wherever they are.
        finishing: Gives pages back.
        totals: Counts preemptions.
    """

    def __init__(
        self,
        roster: Roster,
        contexts: ContextRegistry,
        shares: FairShares,
        floors: Floors,
        stepping: Stepping,
        finishing: Finishing,
        totals: EngineStats,
    ) -> None:
        self._roster = roster
        self._contexts = contexts
        self._shares = shares
        self._floors = floors
        self._stepping = stepping
        self._finishing = finishing
        self._totals = totals

    def park_one(self) -> bool:
        """Lets a paused sequence wait for its turn, with its pages in its context; False if none has any."""
        sequence = self._roster.last_paused()
        if sequence is None:
            return False
        self.suspend(sequence)
        return True

    def preempt_last(self, batch: Batch) -> None:
        """Preempts whoever should yield first; its lane leaves the batch."""
        self._preempt(batch, preemption_victim(self._roster.running, self._shares.clock))

    def take_back(self, batch: Batch, sequence: Sequence, spared: Container[Sequence]) -> bool:
        """Takes the place of one whose account has more than its part, for one whose account has less than its own.

        Args:
            batch: The step so far.
            sequence: For whom.
            spared: Sequences that may not be taken out now.

        Returns:
            False, and nobody taken out, where nobody has more than its part or the other has its own already.
        """
        victim = self._floors.victim(sequence, spared)
        if victim is None:
            return False
        self._preempt(batch, victim)
        return True

    def suspend(self, sequence: Sequence) -> None:
        """Takes a sequence out of those who run; what steps in flight give it is void."""
        self._finishing.close(sequence, keep=True)
        sequence.num_scheduled = sequence.num_computed = sequence.num_in_flight = sequence.num_ahead = 0
        sequence.ahead = sequence.ahead[: max(sequence.num_shown - 1, 0)]
        sequence.prompt_logprobs = []
        sequence.rows = []
        sequence.attention = []
        sequence.pooled = None
        self._roster.suspend(sequence)
        if sequence.request.stepped:
            self._stepping.rest(sequence)

    def _preempt(self, batch: Batch, victim: Sequence) -> None:
        """Takes a running sequence's pages; it keeps the tokens it knows, and waits to compute them again."""
        for member in victim.members:
            batch.withdraw(member)
            self.suspend(member)
            if member.context is not None:
                self._contexts.demote(member.context)
        self._totals.num_preemptions += 1
