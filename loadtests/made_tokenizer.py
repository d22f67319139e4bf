"""A byte-level tokenizer of any size without training, for models of random weights where no real one is stored.

Its tokens behind the 256 bytes are pairs of printable characters, then triples: every id has a text, any text has ids.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MADE = "made"
"""What commands call it instead of a model."""

SPECIAL_TOKENS = ("<|unknown|>", "<|begin|>", "<|end|>")
"""Their ids are 0, 1 and 2."""

_PRINTABLE = [chr(code) for code in range(ord("!"), ord("~") + 1)]


def make_tokenizer(vocab_size: int) -> Tokenizer:
    """Of so many ids.

    Raises:
        ValueError: Fewer than special tokens and bytes need, or more than there are triples for.
    """
    least = len(SPECIAL_TOKENS) + 256
    merges = list(itertools.islice(_merges(), vocab_size - least)) if vocab_size >= least else []
    if vocab_size != least + len(merges):
        raise ValueError(f"a tokenizer is made with {least} to {least + 94**2 + 94**3} ids, not {vocab_size}")
    texts = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(first + last for first, last in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={text: index for index, text in enumerate(texts)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    return tokenizer


def write_made_tokenizer(directory: Path, vocab_size: int) -> Path:
    """Writes its tokenizer.json; returns the directory, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    make_tokenizer(vocab_size).save(str(directory / "tokenizer.json"))
    return directory


def _merges() -> Iterator[tuple[str, str]]:
    """Which tokens become one: characters, then pairs and a character behind them."""
    yield from itertools.product(_PRINTABLE, _PRINTABLE)
    for first, second, third in itertools.product(_PRINTABLE, repeat=3):
        yield first + second, third
