"""How much text a number of tokens can stand for at most, judged without encoding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from engine.text.decoding import BYTE_OF_CHAR, TokenDecoding

_JOINED = {"NFC": 4, "NFD": 1, "Prepend": 1}
"""Normalizers by how many characters they may make one of; canonical composition joins at most four."""

_CONTINUATION_BYTES = range(0x80, 0xC0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthBound:
    """A lower bound of the number of tokens of a text.

    Attributes:
        chars_per_token: No token covers more characters; None if there is no such number.
        dropped: Characters that the vocabulary cannot write and leaves out.
    """

    chars_per_token: int | None
    dropped: str = ""

    def exceeds(self, text: str, limit_tokens: int) -> bool:
        """True if the text surely has more tokens; false says nothing."""
        if self.chars_per_token is None or len(text) <= limit_tokens * self.chars_per_token:
            return False
        num_kept = len(text) - sum(text.count(char) for char in self.dropped)
        return num_kept > limit_tokens * self.chars_per_token

    @classmethod
    def of(cls, library: Tokenizer, decoding: TokenDecoding) -> LengthBound:
        """Works out the bound for a tokenizer.

        A token covers at most as many characters as its text has bytes, times what normalizers may have joined. There
        is no bound where the tokenizer removes text, or makes any number of characters one unknown token.
        """
        factor = _joined(_state(library.normalizer))
        added = library.get_added_tokens_decoder().values()
        dropped = _dropped_chars(library, decoding)
        eats_spaces = any(token.lstrip or token.rstrip for token in added)
        if factor is None or dropped is None or eats_spaces or not _only_cuts(_state(library.pre_tokenizer)):
            return cls(chars_per_token=None)
        longest = max(map(len, library.get_vocab(with_added_tokens=False)), default=1)
        longest = max([longest, *(len(token.content) for token in added)])
        return cls(chars_per_token=factor * longest, dropped=dropped)


def _dropped_chars(library: Tokenizer, decoding: TokenDecoding) -> str | None:
    """Characters that leave no token at all; None if they may be many, or join in one unknown token."""
    if decoding.is_byte_level:
        missing = {byte for char, byte in BYTE_OF_CHAR.items() if library.token_to_id(char) is None}
    elif decoding.has_byte_tokens:
        missing = {byte for byte in range(256) if library.token_to_id(f"<0x{byte:02X}>") is None}
        if any(byte < 0x80 for byte in missing):
            return None
    else:
        return None
    # Every character beyond ASCII has a continuation byte, so it leaves a token if all of those can be written.
    if missing.intersection(_CONTINUATION_BYTES) or (getattr(library.model, "unk_token", None) and missing):
        return None
    return "".join(chr(byte) for byte in missing if byte < 0x80)


def _only_cuts(step: dict[str, Any] | None) -> bool:
    """True if a pre-tokenizer removes nothing."""
    if step is None:
        return True
    if step["type"] == "Sequence":
        return all(_only_cuts(child) for child in step["pretokenizers"])
    if step["type"] in ("Split", "Punctuation"):
        return bool(step["behavior"] != "Removed")
    return step["type"] in ("ByteLevel", "Digits", "Metaspace")


def _joined(step: dict[str, Any] | None) -> int | None:
    """How many characters a normalizer may make one of; None if any number."""
    if step is None:
        return 1
    if step["type"] == "Sequence":
        factor = 1
        for child in step["normalizers"]:
            inner = _joined(child)
            if inner is None:
                return None
            factor *= inner
        return factor
    if step["type"] == "Replace":
        old = step["pattern"].get("String")
        return 1 if old is not None and len(step["content"]) >= len(old) else None
    return _JOINED.get(step["type"])


def _state(part: Any) -> dict[str, Any] | None:
    """The description of a part of a tokenizer."""
    return None if part is None else json.loads(part.__getstate__())
