"""Text of strangers in a prompt: special tokens that are written in it stay text.

A special token is looked for in text as it is spelled. Where one must not be found, the spelling is cut in two, and the
pieces become tokens each by itself: the model reads the same characters, and no token that opens or closes a turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from engine.text.tokenizer import Tokenizer

SPLIT = "\ue0f7\ue0f8"
"""Stands where text is cut, until it becomes tokens; characters that no script uses."""


class PlainText:
    """Cuts spellings of one tokenizer's special tokens.

    Args:
        tokenizer: Whose.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        spellings = {tokenizer.token_text(token_id) for token_id in tokenizer.special_ids}
        self._every = _finder(frozenset(text for text in spellings if len(text) > 1))

    def found(self, text: str) -> set[str]:
        """The special tokens that are spelled in a text."""
        return set() if self._every is None else {match[1] for match in self._every.finditer(text)}

    def cut(self, text: str, only: Collection[str] | None = None) -> str:
        """A text with its special tokens cut.

        Args:
            text: It.
            only: Cut these alone; all if left out.
        """
        finder = self._every if only is None else _finder(frozenset(only))
        if finder is None:
            return text
        at, pieces = 0, []
        for match in finder.finditer(text):
            pieces.append(text[at : match.start() + 1])
            at = match.start() + 1
        return SPLIT.join([*pieces, text[at:]])

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Token ids of a text that may have been cut.

        Raises:
            InvalidText: It holds a lone surrogate.
        """
        first, *rest = text.split(SPLIT)
        ids = self._tokenizer.encode(first, add_special=add_special)
        for piece in rest:
            ids += self._tokenizer.encode(piece, add_special=False)
        return ids


@lru_cache(maxsize=16)
def plain_text(tokenizer: Tokenizer) -> PlainText:
    """Of one tokenizer."""
    return PlainText(tokenizer)


@lru_cache(maxsize=256)
def _finder(spellings: frozenset[str]) -> re.Pattern[str] | None:
    """Finds where any of them begins, inside another one too."""
    longest_first = sorted(spellings, key=lambda text: (-len(text), text))
    return re.compile(f"(?=({'|'.join(map(re.escape, longest_first))}))", re.DOTALL) if longest_first else None
