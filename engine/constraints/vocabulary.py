"""The vocabulary as llguidance sees it: bytes of every token, ids with a meaning, and how text becomes ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from llguidance import LLTokenizer

_NO_SLICES: list[str] = []

SPECIAL_ID = 257
"""Of the special token of `byte_tokenizer` that is no end."""

MAX_KEPT_TEXTS = 4096
MAX_KEPT_CHARS = 64
"""Ids of so many and so long texts are kept: the same few are asked for at every token where text is forced."""


class VocabularyBytes(msgspec.Struct, frozen=True, eq=False):
    """What constraints need to know of a model's tokenizer.

    Attributes:
        tokens: Bytes that each id adds to a text, none for ids without any; as many as the model has ids.
        special_ids: Ids that stand for no text.
        eos_token_ids: Ids that end a text; at least one.
        encode: Text to ids, without anything added. Called from several threads.
    """

    tokens: Sequence[bytes]
    special_ids: Sequence[int]
    eos_token_ids: Sequence[int]
    encode: Callable[[str], Sequence[int]]


def make_tokenizer(vocabulary: VocabularyBytes) -> LLTokenizer:
    """Builds llguidance's tables. Takes some tenths of a second for a large vocabulary and holds the interpreter."""
    return LLTokenizer(_Wrapper(vocabulary), eos_token=list(vocabulary.eos_token_ids))  # type: ignore[arg-type]


def byte_tokenizer() -> LLTokenizer:
    """One token a byte, an end, and a special token: enough to compile for, made in no time."""
    tokens = [bytes([byte]) for byte in range(256)] + [b"<end>", b"<special>"]
    vocabulary = VocabularyBytes(tokens, (256, SPECIAL_ID), (256,), lambda text: list(text.encode("utf-8", "replace")))
    return LLTokenizer(_Wrapper(vocabulary), eos_token=[256], slices=_NO_SLICES)  # type: ignore[arg-type]


class _Wrapper:
    """The attributes that `LLTokenizer` reads off a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: VocabularyBytes) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = list(vocabulary.special_ids)
        self._encode = vocabulary.encode
        self._kept = lru_cache(MAX_KEPT_TEXTS)(self._encode)

    def __call__(self, text: str) -> list[int]:
        return list(self._kept(text) if len(text) <= MAX_KEPT_CHARS else self._encode(text))
