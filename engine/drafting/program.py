"""Guesses by a device program: a function `propose` of the history, in the language of `engine.programs`.

It is computed where the history is known, beside the scheduler and by the language's reference, so that nothing crosses
to whoever wrote it. What it draws has a random stream of its own: the draws that judge its guesses know nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from engine.drafting.offers import Offer, make_offer
from engine.programs.binding import BoundProgram
from engine.programs.reference import propose
from engine.programs.values import Array, StepValues
from engine.sampling.random import mix64

_GAMMA = 0x9E3779B97F4A7C15
_GUESSES = 0x8EBC6AF09C88C6E3
"""Tells the random numbers of guesses from those of draws."""


class ProgramDrafter:
    """Implements `engine.drafting.drafter.Drafter` by a program.

    Args:
        bound: The program.
        token_ids: The history; this very list grows.
        num_prompt: Tokens of it that are no output.
        stream: Names the sequence's random stream, see `engine.sampling.random.stream_key`.
        vocab_size: Of the model.
        max_tokens: Most tokens guessed at a time.
    """

    waits = True

    def __init__(
        self,
        bound: BoundProgram,
        token_ids: Sequence[int],
        num_prompt: int,
        stream: int,
        vocab_size: int,
        max_tokens: int,
    ) -> None:
        self._bound = bound
        self._token_ids = token_ids
        self._num_prompt = num_prompt
        self._stream = stream
        self._vocab_size = vocab_size
        self._max_tokens = max_tokens
        self._state: Mapping[str, Array] | None = None
        self.is_offering = bool(bound.graph.weights)
        self.offers: Sequence[Offer] = ()

    def propose(self, most: int, num_unknown: int = 0, least: float = 0.0) -> list[int]:
        """See `Drafter.propose`; whoever wrote the program knows what a guess is worth."""
        del least
        assert not num_unknown
        found = propose(self._bound.graph, self._values(), self._bound.parameters, self._state)
        self._state = found.state
        token_ids: list[int] = []
        offers: list[Offer] = []
        for at, token_id in enumerate(found.tokens[: min(most, self._max_tokens)]):
            if not 0 <= token_id < self._vocab_size:
                break
            if found.weights:
                weights = found.weights[at].astype(np.float64)
                offer = make_offer(token_id, np.arange(self._vocab_size), weights)
                if offer is None:
                    break
                offers.append(offer)
            token_ids.append(token_id)
        self.offers = offers
        return token_ids

    def _values(self) -> StepValues:
        history = np.array(self._token_ids, dtype=np.int64)
        counts = None
        if "counts" in self._bound.graph.inputs:
            counts = np.bincount(history[self._num_prompt :], minlength=self._vocab_size).astype(np.int64)
        position = len(history)
        key = mix64(mix64(self._stream + (position + 1) * _GAMMA) + _GUESSES)
        return StepValues(
            vocab_size=self._vocab_size, key=key, step=position - self._num_prompt, history=history, counts=counts
        )
