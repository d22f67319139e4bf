"""Which sequences get how many guessed tokens in a step."""

from __future__ import annotations

from engine.drafting.lookup import PromptLookup
from engine.request import GenerateRequest
from engine.scheduling.batch import Batch
from engine.sequence import Sequence


class DraftPlanner:
    """Asks the drafters of sequences that decode.

    Args:
        max_step_tokens: Guessed tokens of one step at most, of all sequences together.
    """

    def __init__(self, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens

    def begin(self, sequence: Sequence, request: GenerateRequest) -> None:
        """Gives a new sequence its drafter, if its request wants one."""
        if request.drafter is not None:
            sequence.drafter = PromptLookup(request.drafter, sequence.token_ids, sequence.num_prompt)

    def propose(self, sequence: Sequence, batch: Batch, budget: int) -> list[int]:
        """Guesses for a sequence that is about to compute one token; often none.

        Args:
            sequence: One with a drafter.
            batch: The step so far.
            budget: Tokens that the step has room for beside that one.
        """
        assert sequence.drafter is not None
        left = (
            sequence.max_total - sequence.num_tokens - 1
        )  # each guess that is right is followed by a token of its own
        most = min(left, budget, self._max_step_tokens - batch.num_drafts)
        if most < 1 or not _may_guess(sequence):
            return []
        guess = sequence.drafter.propose(most, sequence.num_in_flight)
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
