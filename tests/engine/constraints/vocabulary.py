"""A vocabulary small enough to see through: one token a byte, a few words, an end."""

from __future__ import annotations

from engine.constraints.vocabulary import VocabularyBytes

WORDS = [b'{"', b'":', b"true", b"false", b"null", b"  ", b"\n    ", b"name", b"yes"]
EOS = 256
TOKENS = [bytes([byte]) for byte in range(256)] + [b"<end>"] + WORDS + [b""] * 3
"""The last ids are the model's padding: they stand for nothing."""


def encode(text: str) -> list[int]:
    """The longest word that fits, else a byte."""
    data, ids, at = text.encode(), [], 0
    by_length = sorted(WORDS, key=len, reverse=True)
    while at < len(data):
        word = next((word for word in by_length if data.startswith(word, at)), data[at : at + 1])
        ids.append(TOKENS.index(word))
        at += len(word)
    return ids


def decode(ids: list[int]) -> str:
    """The text of ids, the end left out."""
    return b"".join(TOKENS[token_id] for token_id in ids if token_id != EOS).decode("utf-8", "replace")


def vocabulary() -> VocabularyBytes:
    """The same for constraints."""
    return VocabularyBytes(tokens=TOKENS, special_ids=(EOS,), eos_token_ids=(EOS,), encode=encode)
