"""Text to token ids and back, with the true bytes of every token."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Library

from engine.text.decoding import TokenDecoding
from engine.text.errors import InvalidText, TextTooLong
from engine.text.gguf_tokenizer import load_gguf
from engine.text.hf_tokenizer import load_directory
from engine.text.length import LengthBound


class Spelling(msgspec.Struct, frozen=True, gc=False):
    """How a token is written inside a text.

    Attributes:
        data: Its true bytes.
        text: Its text alone; U+FFFD where its bytes are no whole character.
        is_whole: Its bytes are whole characters.
    """

    data: bytes
    text: str
    is_whole: bool


class Tokenizer:
    """One model's tokenizer. Never changes after loading; safe to use from several threads.

    Attributes:
        bos_token_id: The token that opens a text, if the model has one.
        special_ids: Ids of special tokens: parsed in text, left out of text on request.
        closing_ids: Tokens that end a text that is to be embedded, as the model was trained; mostly none.
    """

    def __init__(
        self,
        library: Library,
        *,
        bos_token_id: int | None = None,
        adds_bos: bool = False,
        closing_ids: tuple[int, ...] = (),
    ) -> None:
        """Wraps a tokenizer of the `tokenizers` library, which must not change afterwards.

        Args:
            library: Vocabulary, rules and added tokens.
            bos_token_id: The token that opens a text.
            adds_bos: Completion prompts begin with it.
            closing_ids: Tokens that end a text that is to be embedded.
        """
        self._library = library
        self._decoding = TokenDecoding.from_decoder(library.decoder)
        added: dict[int, Any] = library.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {token_id: token.content.encode("utf-8") for token_id, token in added.items()}
        self._vocab_size = library.get_vocab_size()
        self._spellings: dict[int, Spelling] = {}
        self._length_bound = LengthBound.of(library, self._decoding)
        self._adds_bos = adds_bos and bos_token_id is not None
        self.bos_token_id = bos_token_id
        self.closing_ids = closing_ids
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Reads the tokenizer of a Hugging Face directory or a GGUF file.

        Raises:
            ModelLoadError: It is missing, damaged or of an unknown kind; the message names file and key.
        """
        path = Path(path)
        parts = load_directory(path) if path.is_dir() else load_gguf(path)
        return cls(
            parts.library,
            bos_token_id=parts.bos_token_id,
            adds_bos=parts.adds_bos,
            closing_ids=parts.closing_ids,
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows, added tokens included; the model's own may be larger (padding)."""
        return self._vocab_size

    def encode(self, text: str, *, add_special: bool, max_chars: int | None = None) -> list[int]:
        """Returns the ids of a text; special tokens written in it become themselves.

        Takes about a second per few megabytes and holds its thread meanwhile: ask `cannot_fit` first, or name
        `max_chars`, before encoding text of unknown length.

        Args:
            text: Any valid Unicode.
            add_special: Begin with the opening token if the model's tokenizer does so (and the text does not): true
                for completion prompts, false for what a chat template wrote.
            max_chars: Refuse longer text without looking at it.

        Raises:
            InvalidText: The text holds a lone surrogate.
            TextTooLong: It has more than `max_chars` characters.
        """
        if max_chars is not None and len(text) > max_chars:
            raise TextTooLong(len(text), max_chars)
        _check_surrogates(text)
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if add_special and self._adds_bos and ids[:1] != [self.bos_token_id]:
            assert self.bos_token_id is not None
            return [self.bos_token_id, *ids]
        return ids

    def cannot_fit(self, text: str, limit_tokens: int) -> bool:
        """True if the text surely has more tokens than that, judged by its length alone; costs nothing.

        False says nothing: the text may still be too long. Always false where one token may stand for any length of
        text, as with normalizers that drop or merge characters.
        """
        return self._length_bound.exceeds(text, limit_tokens)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Returns the text of ids; bytes that are no UTF-8 become U+FFFD. Equals the library's text otherwise."""
        shown = [token_id for token_id in ids if not (skip_special and token_id in self.special_ids)]
        chunks = [self.token_bytes(token_id) for token_id in shown]
        first = next((at for at, data in enumerate(chunks) if data), None)
        if first is not None:
            chunks[first] = self.token_bytes(shown[first], at_start=True)
        return b"".join(chunks).decode("utf-8", "replace")

    def token_bytes(self, token_id: int, *, at_start: bool = False) -> bytes:
        """Returns the bytes a token adds to a text; none for ids the tokenizer does not know.

        Args:
            token_id: Any id of the model.
            at_start: It opens the text: some tokenizers drop the space before the first word.
        """
        if at_start:
            return self._first_bytes(token_id)
        return self.spelling(token_id).data

    def token_text(self, token_id: int) -> str:
        """Returns a token's text alone; U+FFFD where its bytes are no whole character."""
        return self.spelling(token_id).text

    def spelling(self, token_id: int) -> Spelling:
        """Returns how a token is written; empty for ids the tokenizer does not know."""
        found = self._spellings.get(token_id)
        return self._spell(token_id) if found is None else found

    def _spell(self, token_id: int) -> Spelling:
        data = self._read_bytes(token_id)
        text = data.decode("utf-8", "replace")
        spelling = self._spellings[token_id] = Spelling(data, text, text.encode() == data)
        return spelling

    def _first_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._decoding.strip_start(self._added[token_id])
        token = self._library.id_to_token(token_id)
        return b"" if token is None else self._decoding.token_bytes(token, at_start=True)

    def _read_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added
        token = self._library.id_to_token(token_id) if token_id >= 0 else None
        return b"" if token is None else self._decoding.token_bytes(token)


def _check_surrogates(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidText(error.start, text[error.start]) from None
