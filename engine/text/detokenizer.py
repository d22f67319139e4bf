"""Text of tokens that arrive a few at a time: never half a character."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from engine.text.tokenizer import Tokenizer


class DecodedToken(msgspec.Struct, frozen=True, gc=False):
    """A token and its place in the text.

    Attributes:
        token_id: Its id.
        data: The bytes it adds to the text; empty for a hidden token.
        start: Index, in characters of the whole text, of the character that holds its first byte.
        end: Index after the character that holds its last byte; equals `start` if it has no bytes.
        is_hidden: It is a special token that was left out of the text.
    """

    token_id: int
    data: bytes
    start: int
    end: int
    is_hidden: bool


class Piece(msgspec.Struct, frozen=True):
    """New text, and the tokens whose last character has arrived with it.

    Attributes:
        text: Whole characters only; may be empty.
        tokens: In order; their `end` lies within all text given so far.
    """

    text: str
    tokens: list[DecodedToken]


class IncrementalDetokenizer:
    """Turns one sequence's tokens into text as they come.

    All pieces joined are `tokenizer.decode` of all ids pushed, but for an unfinished character at the very end, which
    adds nothing. Bytes that are no UTF-8 become U+FFFD as soon as no later byte can mend them.

    Args:
        tokenizer: Of the model that makes the tokens.
        skip_special: Leave special tokens out of the text.
        revealed_ids: But for these.
        prompt_tail: Ids before the first pushed one (all of them, or the last few). They add no text, but a
            tokenizer that drops the space before the first word drops none after them, and a character that they
            begin is completed.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        revealed_ids: frozenset[int] = frozenset(),
        prompt_tail: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden_ids = tokenizer.special_ids - revealed_ids if skip_special else frozenset()
        self._unfinished = b""
        self._num_chars = 0
        self._waiting: list[DecodedToken] = []
        self._at_start = not self._read_tail(prompt_tail)

    @property
    def first_waiting(self) -> int:
        """Index of the first character that a token still waits in; the number of characters given if none does."""
        return self._waiting[0].start if self._waiting else self._num_chars

    @property
    def waiting(self) -> Sequence[DecodedToken]:
        """The tokens of an unfinished character; if nothing follows, they never come with a piece."""
        return self._waiting

    def push(self, ids: Sequence[int], *, hide: bool = False) -> Piece:
        """Takes the next tokens.

        Args:
            ids: Token ids; padding ids beyond the tokenizer have no text.
            hide: Leave these tokens out of the text, special or not.
        """
        text = ""
        for token_id in ids:
            start = self._num_chars
            if hide or token_id in self._hidden_ids:
                self._waiting.append(DecodedToken(token_id, b"", start, start, True))
                continue
            spelling = self._tokenizer.spelling(token_id)
            if self._unfinished or self._at_start or not spelling.is_whole:
                text += self._decode(token_id, spelling.data)
            else:
                self._num_chars = end = start + len(spelling.text)
                self._waiting.append(DecodedToken(token_id, spelling.data, start, end, False))
                text += spelling.text
        return Piece(text, self._release())

    def push_whole(self, token_id: int) -> str | None:
        """Takes one token and returns its text if that is whole characters inside a text without loose ends.

        Any other token is left to `push`: then this returns None, and nothing has changed.
        """
        if self._unfinished or self._waiting or self._at_start or token_id in self._hidden_ids:
            return None
        spelling = self._tokenizer.spelling(token_id)
        if not spelling.is_whole:
            return None
        self._num_chars += len(spelling.text)
        return spelling.text

    def _decode(self, token_id: int, data: bytes) -> str:
        """Takes a token that begins the text, or parts of characters."""
        if self._at_start and data:
            data, self._at_start = self._tokenizer.token_bytes(token_id, at_start=True), False
        start = self._num_chars
        if self._unfinished and data:
            text = self._read(data[:1])
            # A first byte that does not go on with the unfinished ones leaves them as one U+FFFD before it.
            start += text.startswith("\ufffd") and (len(text) > 1 or bool(self._unfinished))
            text += self._read(data[1:])
        else:
            text = self._read(data)
        self._num_chars += len(text)
        end = self._num_chars + bool(self._unfinished) if data else start
        self._waiting.append(DecodedToken(token_id, data, start, end, False))
        return text

    def _read(self, data: bytes) -> str:
        """Whole characters of what is unfinished and then `data`; keeps the rest."""
        data = self._unfinished + data
        text, num_read = utf_8_decode(data, "replace", False)
        self._unfinished = data[num_read:]
        return text

    def _release(self) -> list[DecodedToken]:
        if not self._unfinished:
            done, self._waiting = self._waiting, []
            return done
        num_done = 0
        while num_done < len(self._waiting) and self._waiting[num_done].end <= self._num_chars:
            num_done += 1
        done = self._waiting[:num_done]
        del self._waiting[:num_done]
        return done

    def _read_tail(self, ids: Sequence[int]) -> bool:
        """Readies the decoder with an unfinished character of the prompt; true if the prompt has any text."""
        tail = b""
        for token_id in reversed(ids):
            if token_id not in self._hidden_ids:
                tail = self._tokenizer.token_bytes(token_id) + tail
            if len(tail) >= 4:
                break
        self._read(tail)
        return bool(tail)
