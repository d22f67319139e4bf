"""One sequence's place in its language."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.errors import ConstraintBroken

__all__ = ["Constraint", "ConstraintBroken", "TokenMask"]

TokenMask = npt.NDArray[np.int32]
"""[ceil(V / 32)], bit i of word w allows token 32 * w + i."""


class Constraint:
    """What the tokens of one sequence may be; follows them one by one.

    It knows exactly the output tokens that the host knows, so a sequence that yielded its pages goes on where it was.

    Args:
        matcher: At the beginning of the language; this object's own.
        num_words: Words of a mask.
        param: The client's field to blame when it cannot be followed.
    """

    def __init__(self, matcher: LLMatcher, num_words: int, param: str) -> None:
        self._matcher = matcher
        self._num_words = num_words
        self._param = param

    @property
    def is_complete(self) -> bool:
        """Nothing can follow: the text is whole."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def is_accepting(self) -> bool:
        """The text may end here."""
        return self._matcher.is_accepting()

    @property
    def is_free(self) -> bool:
        """Any token may come next."""
        return False

    def fork(self) -> Constraint:
        """Another one at the same place."""
        return Constraint(self._matcher.deep_copy(), self._num_words, self._param)

    def advance(self, token_ids: Sequence[int]) -> None:
        """Goes past tokens.

        Raises:
            ConstraintBroken: They do not belong to the language.
        """
        if not self._matcher.consume_tokens(list(token_ids)):
            # What llguidance says here is about one token, in its own spelling.
            reason = "no token can satisfy both it and the other parameters"
            raise ConstraintBroken(self._message(reason), self._param)

    def forced(self) -> list[int]:
        """Tokens that must come next, as the tokenizer would write them; often none."""
        return self._matcher.compute_ff_tokens()

    def mask(self) -> TokenMask | None:
        """Tokens that may come next; None where any may.

        Raises:
            ConstraintBroken: None may, or finding out would take too long.
        """
        words = np.zeros(self._num_words, dtype=np.int32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error() or not words.any():
            raise self._broken("nothing can follow")
        return words

    def allows(self, token_id: int) -> bool:
        """Whether a token may come next.

        Raises:
            ConstraintBroken: None may, or finding out would take too long.
        """
        mask = self.mask()
        return mask is None or bool(mask[token_id // 32] >> token_id % 32 & 1)

    def _broken(self, reason: str) -> ConstraintBroken:
        detail = self._matcher.get_error().split("\n<non-verbose/>")[0][:200]
        reason = f"{reason} ({detail})" if detail else reason
        return ConstraintBroken(self._message(reason), self._param)

    def _message(self, reason: str) -> str:
        return f"'{self._param}' cannot be followed any further: {reason}"
