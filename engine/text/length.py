"""How much text one token can stand for at most."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from engine.text.decoding import BYTE_OF_CHAR, TokenDecoding

_SHRINK = {"NFC": 4, "NFD": 1, "Prepend": 1}
"""Normalizers by how many characters they may make one of; canonical composition joins at most four."""

_IN_UTF8 = frozenset([*range(0xC0), *range(0xC2, 0xF5)])
"""Bytes that occur in valid text; some vocabularies leave the others out."""


def max_chars_per_token(library: Tokenizer, decoding: TokenDecoding) -> int | None:
    """Returns an upper bound of the characters of text that one token covers; None if there is none.

    A token covers at most as many characters as its text has bytes, times what normalizers may have joined, unless
    the tokenizer drops or merges characters: then any length of text may be one token or none.
    """
    shrink = _shrink(_state(library.normalizer))
    added = library.get_added_tokens_decoder()
    if shrink is None or any(token.lstrip or token.rstrip for token in added.values()):
        return None
    if not _cuts_only(_state(library.pre_tokenizer)) or not _keeps_every_char(library, decoding):
        return None
    vocab: dict[str, int] = library.get_vocab(with_added_tokens=False)
    longest = max((len(token) for token in vocab), default=1)
    return shrink * max(longest, *(len(token.content) for token in added.values()), 1)


def _keeps_every_char(library: Tokenizer, decoding: TokenDecoding) -> bool:
    """True if no character can vanish or join its neighbours in one unknown token."""
    if decoding.is_byte_level:
        return all(library.token_to_id(char) is not None for char, byte in BYTE_OF_CHAR.items() if byte in _IN_UTF8)
    if decoding.has_byte_tokens:
        return all(library.token_to_id(f"<0x{byte:02X}>") is not None for byte in _IN_UTF8)
    return False


def _cuts_only(step: dict[str, Any] | None) -> bool:
    """True if a pre-tokenizer removes nothing."""
    if step is None:
        return True
    if step["type"] == "Sequence":
        return all(_cuts_only(child) for child in step["pretokenizers"])
    if step["type"] in ("Split", "Punctuation"):
        return bool(step["behavior"] != "Removed")
    return step["type"] in ("ByteLevel", "Digits", "Metaspace")


def _state(part: Any) -> dict[str, Any] | None:
    """The description of a part of a tokenizer."""
    return None if part is None else json.loads(part.__getstate__())


def _shrink(step: dict[str, Any] | None) -> int | None:
    if step is None:
        return 1
    if step["type"] == "Sequence":
        factor = 1
        for child in step["normalizers"]:
            inner = _shrink(child)
            if inner is None:
                return None
            factor *= inner
        return factor
    if step["type"] == "Replace":
        old = step["pattern"].get("String")
        return 1 if old is not None and len(step["content"]) >= len(old) else None
    return _SHRINK.get(step["type"])
