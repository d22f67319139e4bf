"""Which sequences get how many guessed tokens in a step."""

from __future__ import annotations

from engine.drafting.costs import least_probability
from engine.drafting.lookup import PromptLookup
from engine.request import GenerateRequest
from engine.scheduling.batch import Batch
from engine.sequence import Sequence

MAX_STEP_DRAFTS = 64
"""Most guessed tokens in one step, whatever they cost."""


class DraftPlanner:
    """Asks the drafters of sequences that decode.

    Args:
        cost: What a guessed token adds to a step, see `engine.drafting.costs`.
    """

    def __init__(self, cost: float) -> None:
        self._cost = cost

    def begin(self, sequence: Sequence, request: GenerateRequest) -> None:
        """Gives a new sequence its drafter, if its request wants one."""
        if request.drafter is not None:
            sequence.drafter = PromptLookup(request.drafter, sequence.token_ids, sequence.num_prompt)

    def propose(self, sequence: Sequence, batch: Batch, budget: int, num_running: int) -> list[int]:
        """Guesses for a sequence that is about to compute one token; often none.

        Args:
            sequence: One with a drafter.
            batch: The step so far.
            budget: Tokens that the step has room for beside that one.
            num_running: Sequences that share the step.
        """
        assert sequence.drafter is not None
        left = (
            sequence.max_total - sequence.num_tokens - 1
        )  # each guess that is right is followed by a token of its own
        most = min(left, budget, MAX_STEP_DRAFTS - batch.num_drafts)
        if most < 1 or not _may_guess(sequence):
            return []
        least = least_probability(self._cost, num_running)
        guess = sequence.drafter.propose(most, sequence.num_in_flight, least)
        for count, token_id in enumerate(guess):
            if token_id in sequence.stop_ids:
                return guess[:count]  # nothing follows it, and it needs no guess to be drawn
        return guess


def _may_guess(sequence: Sequence) -> bool:
    if sequence.context is not None and sequence.context.edits:
        return False  # what its rows see is worked out token by token
    if sequence.constraint is None:
        return True
    # The state of a constraint is that after the tokens known; tokens that are certain need no guess.
    return sequence.num_in_flight == 0 and not sequence.forced_tokens()
