"""A tokenizer in which a test decides where tokens end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from engine.text.decoding import BYTE_OF_CHAR
from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer

END = "<|end|>"


class Words:
    """A byte-level vocabulary of the 256 bytes, an end token, and whatever pieces a test names.

    Attributes:
        text: What a runtime needs.
        end_id: The special token.
    """

    def __init__(self, *pieces: str | bytes) -> None:
        char_of_byte = {byte: char for char, byte in BYTE_OF_CHAR.items()}
        data = [bytes([byte]) for byte in range(256)]
        data += [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        names = ["".join(char_of_byte[byte] for byte in one) for one in data]
        library = Library(BPE(vocab={name: at for at, name in enumerate(names)}, merges=[]))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        library.add_special_tokens([AddedToken(END, special=True)])
        self._ids = {one: at for at, one in enumerate(data)}
        self.tokenizer = Tokenizer(library)
        self.text = TextModel(path=Path("test"), tokenizer=self.tokenizer, chat_template=None)
        self.end_id = self.tokenizer.vocab_size - 1

    def ids(self, *pieces: str | bytes) -> list[int]:
        """One token for each piece that the vocabulary holds."""
        return [self._ids[piece.encode() if isinstance(piece, str) else piece] for piece in pieces]

    def spell(self, text: str) -> list[int]:
        """One token for each byte."""
        return list(text.encode())

    def join(self, data: Sequence[bytes]) -> str:
        """Text of token bytes."""
        return b"".join(data).decode()
