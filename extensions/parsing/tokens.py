"""Which tokens of an answer belong to its content, and how many to its thinking."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from engine.text.tokenizer import Tokenizer
from extensions.output import TokenText
from extensions.parsing.parts import Content, Part, Reasoning, Skipped


class _Placed(NamedTuple):
    """A token and where the text that it completes begins and ends; the same if its character goes on."""

    start: int
    end: int
    token: TokenText


_Test = Callable[[_Placed], bool]


class ContentTokens:
    """Hands out the tokens of content along with it; those of thinking and calls to nobody.

    A token belongs to the part that holds its last byte; one that ends in a marker belongs to the content that it
    begins in. Places are counted in bytes of the text, where a broken byte is the three of U+FFFD.
    """

    def __init__(self) -> None:
        self._tokens: deque[_Placed] = deque()
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._num_bytes = 0
        self._at = 0

    def add(self, tokens: Iterable[TokenText]) -> None:
        """Takes the next tokens of the text."""
        for token in tokens:
            start = self._num_bytes
            self._num_bytes += len(self._decoder.decode(token.data).encode())
            self._tokens.append(_Placed(start, self._num_bytes, token))

    def take(self, part: Part) -> list[TokenText]:
        """The tokens of the next part, if it is content."""
        if isinstance(part, Content):
            self._at += len(part.text.encode())
            return self._pop(lambda placed: placed.start < self._at)
        if isinstance(part, Reasoning | Skipped):
            self._at += len(part.text.encode())
            self._pop(lambda placed: placed.start < self._at and placed.end <= self._at)
        return []

    def take_rest(self) -> list[TokenText]:
        """Tokens of a character that never came to its end, when there is no more text."""
        # Not by its place: a token whose first byte shows that those before it are broken seems to begin with them.
        return self._pop(lambda placed: True)

    def _pop(self, belongs: _Test) -> list[TokenText]:
        taken = []
        while self._tokens and belongs(self._tokens[0]):
            taken.append(self._tokens.popleft().token)
        return taken


class ReasoningTokens:
    """Counts the tokens of the thinking, its markers included.

    Args:
        tokenizer: Of the served model.
        hidden_ids: Ids that add nothing to the text.
    """

    def __init__(self, tokenizer: Tokenizer, hidden_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = hidden_ids
        self._num_bytes = 0
        self._num_token_bytes = 0
        self._has_thought = False
        self._is_over = False
        self._waiting: deque[int] = deque()
        self._count = 0

    @property
    def count(self) -> int:
        """Tokens so far."""
        return self._count if self._has_thought else 0

    def add(self, token_ids: Sequence[int], parts: Iterable[Part]) -> None:
        """Takes the next tokens and the parts that their text completed."""
        if self._is_over:
            return
        self._waiting.extend(token_ids)
        for part in parts:
            if not isinstance(part, Reasoning | Skipped):
                self._is_over = True
                break
            self._has_thought = self._has_thought or isinstance(part, Reasoning)
            self._num_bytes += len(part.text.encode())
        while self._waiting and self._num_token_bytes < self._num_bytes:
            token_id = self._waiting.popleft()
            self._count += 1
            if token_id not in self._hidden_ids:
                self._num_token_bytes += len(self._tokenizer.token_bytes(token_id))
