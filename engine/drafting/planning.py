"""Which sequences get how many guessed tokens in a step."""

from __future__ import annotations

from engine.drafting.costs import least_probability
from engine.drafting.drafter import GivenGuesses
from engine.drafting.lookup import PromptLookup
from engine.drafting.program import ProgramDrafter
from engine.programs.binding import bind_drafter
from engine.request import GenerateRequest
from engine.sampling.random import stream_key
from engine.scheduling.batch import Batch
from engine.sequence import Sequence

MAX_STEP_DRAFTS = 64
"""Most guessed tokens in one step, whatever they cost."""


class DraftPlanner:
    """Asks the drafters of sequences that decode.

    Args:
        cost: What a guessed token adds to a step, see `engine.drafting.costs`.
        vocab_size: Of the model.
    """

    def __init__(self, cost: float, vocab_size: int) -> None:
        self._cost = cost
        self._vocab_size = vocab_size

    def begin(self, sequence: Sequence, request: GenerateRequest) -> None:
        """Gives a new sequence its drafter, if its request wants one."""
        spec = request.drafter
        if spec is None:
            return
        if spec.given:
            sequence.drafter = GivenGuesses(self._vocab_size)
        elif spec.program is not None:
            bound = bind_drafter(spec.program.source, spec.program.parameters, self._vocab_size)
            stream = stream_key(sequence.seed, sequence.index)
            sequence.drafter = ProgramDrafter(
                bound, sequence.token_ids, sequence.num_prompt, stream, self._vocab_size, spec.max_tokens
            )
        else:
            sequence.drafter = PromptLookup(spec, sequence.token_ids, sequence.num_prompt)

    def most(self, sequence: Sequence) -> int:
        """Tokens that a guess for a sequence may have now, as far as it goes: those that may come, but for the last."""
        if not _may_guess(sequence):
            return 0
        return max(0, min(sequence.max_total - sequence.num_tokens - 1, MAX_STEP_DRAFTS))

    def propose(self, sequence: Sequence, batch: Batch, budget: int, num_running: int) -> list[int]:
        """Guesses for a sequence that is about to compute one token; often none.

        Args:
            sequence: One with a drafter.
            batch: The step so far.
            budget: Tokens that the step has room for beside that one.
            num_running: Sequences that share the step.
        """
        assert sequence.drafter is not None
        # Each guess that is right is followed by a token of its own.
        most = min(sequence.max_total - sequence.num_tokens - 1, budget, MAX_STEP_DRAFTS - batch.num_drafts)
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
    if sequence.constraint is None or sequence.constraint.is_free:
        return True
    # The state of a constraint is that after the tokens known; tokens that are certain need no guess.
    return sequence.num_in_flight == 0 and not sequence.forced_tokens()
