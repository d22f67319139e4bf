"""Guesses at the next tokens from text that is there already: the history, or a text that the answer will resemble.

The last tokens are looked for where they stood before; what followed them there is the guess ("Inference with
Reference", arXiv 2304.04487). As long as the guess proves right it is followed on, and the longer it has been right the
more tokens are guessed at a time; once it is wrong, nothing is guessed until some tokens match again. How often guesses
were right is known also where they were not used: it says how many tokens on a guess may still be worth verifying.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from engine.drafting.offers import Offer
from engine.request import DrafterSpec

_MEMORY = 0.9
"""Of what was right and what was tried, so much counts on with each further token."""

_BELIEVED_TRIED, _BELIEVED_RIGHT, _BELIEVED_RIGHT_OF_REFERENCE = 2.0, 1.2, 1.7
"""What is believed of guesses before any was tried."""

_MOST_LIKELY = 0.98


class _Index:
    """Where each run of a few tokens stands in a text.

    Attributes:
        tokens: The text.
    """

    def __init__(self, tokens: Sequence[int], lengths: range, *, keeps_all: bool) -> None:
        self.tokens = tokens
        self._lengths = lengths
        self._keeps_all = keeps_all
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._num_indexed = 0

    def grow(self, length: int) -> None:
        """Takes in all runs that end before the last of the first `length` tokens."""
        for end in range(self._num_indexed + 1, length):
            for size in self._lengths:
                if size <= end:
                    self._add(tuple(self.tokens[end - size : end]), end)
        self._num_indexed = max(self._num_indexed, length - 1)

    def find(self, tail: Sequence[int], after: int) -> tuple[int, int] | None:
        """The place behind the longest run that a text ends in, and the run's length; None if no run is found.

        Args:
            tail: The end of the text.
            after: Of several places the first from here on is taken, else the last of all.
        """
        for size in reversed(self._lengths):
            places = self._places.get(tuple(tail[-size:])) if size <= len(tail) else None
            if places:
                return places[min(bisect_left(places, after), len(places) - 1)], size
        return None

    def _add(self, run: tuple[int, ...], end: int) -> None:
        places = self._places.get(run)
        if places is None:
            self._places[run] = [end]
        elif self._keeps_all:
            places.append(end)
        else:
            places[0] = end


@dataclass(slots=True)
class _Cursor:
    """A place in a text that the history seems to follow, and how many tokens it has followed it."""

    index: _Index
    place: int
    streak: int


class PromptLookup:
    """Implements `engine.drafting.drafter.Drafter` by looking text up.

    Args:
        spec: How to guess.
        token_ids: The history; this very list grows.
        num_prompt: Tokens of it that are no output.
    """

    waits = False
    is_offering = False
    offers: Sequence[Offer] = ()

    def __init__(self, spec: DrafterSpec, token_ids: Sequence[int], num_prompt: int) -> None:
        self._spec = spec
        self._token_ids = token_ids
        lengths = range(spec.min_match, spec.max_match + 1)
        self._own = _Index(token_ids, lengths, keeps_all=False)
        self._reference = _Index(spec.reference_ids, lengths, keeps_all=True)
        self._reference.grow(len(spec.reference_ids) + 1)
        # An answer that is known to resemble a text is taken to begin as it does.
        trust = spec.max_tokens if spec.reference_ids else 0
        self._cursor = _Cursor(self._reference, 0, trust) if trust else None
        self._num_tried = _BELIEVED_TRIED
        self._num_right = _BELIEVED_RIGHT_OF_REFERENCE if spec.reference_ids else _BELIEVED_RIGHT
        self._num_seen = num_prompt
        self._last_place = 0

    def propose(self, most: int, num_unknown: int = 0, least: float = 0.0) -> list[int]:
        """See `engine.drafting.drafter.Drafter.propose`."""
        self._follow()
        cursor = self._cursor
        if cursor is None:
            return []
        wanted = num_unknown + min(most, self._spec.max_tokens, cursor.streak, self._num_likely(least))
        tokens = cursor.index.tokens
        guess = list(tokens[cursor.place : cursor.place + wanted])
        if cursor.index is self._own and guess:
            while len(guess) < wanted:  # the history repeats itself: so will the guess
                guess.append(guess[len(guess) - (len(tokens) - cursor.place)])
        return guess[num_unknown:]

    def _follow(self) -> None:
        """Takes in the tokens that are new since the last call."""
        tokens, cursor = self._token_ids, self._cursor
        for place in range(self._num_seen, len(tokens)):
            if cursor is None:
                break
            is_right = cursor.place < len(cursor.index.tokens) and cursor.index.tokens[cursor.place] == tokens[place]
            self._note(is_right)
            if is_right:
                cursor.place += 1
                cursor.streak += 1
            else:
                self._last_place = cursor.place if cursor.index is self._reference else self._last_place
                cursor = None
        self._num_seen = len(tokens)
        self._own.grow(len(tokens))
        self._cursor = cursor or self._search()

    def _note(self, is_right: bool) -> None:
        self._num_right = self._num_right * _MEMORY + is_right
        self._num_tried = self._num_tried * _MEMORY + 1

    def _num_likely(self, least: float) -> int:
        """Tokens of a guess that are all right with at least this probability, as far as the past tells."""
        likelihood = min(self._num_right / self._num_tried, _MOST_LIKELY)
        return self._spec.max_tokens if least <= 0 else int(math.log(least) / math.log(max(likelihood, least / 2)))

    def _search(self) -> _Cursor | None:
        tail = self._token_ids[-self._spec.max_match :]
        found = self._reference.find(tail, self._last_place)
        if found is not None and found[0] < len(self._reference.tokens):
            return _Cursor(self._reference, *found)
        found = self._own.find(tail, 0)
        return None if found is None else _Cursor(self._own, *found)
