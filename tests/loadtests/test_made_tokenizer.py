"""A tokenizer that nobody trained: every text has ids, every id a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.text.tokenizer import Tokenizer
from loadtests.made_tokenizer import make_tokenizer, write_made_tokenizer
from loadtests.random_model import MADE_IDS, main, write_random_model


def test_texts_come_back_and_every_id_has_one(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_made_tokenizer(tmp_path, MADE_IDS))
    assert tokenizer.vocab_size == MADE_IDS
    for text in ("Write down all that you know.", "naïve 日本語 🙂\n\ttabs", "a" * 50):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
    assert all(tokenizer.decode([token]) for token in range(300, MADE_IDS, 977))


def test_words_are_cut_into_triples() -> None:
    found = make_tokenizer(MADE_IDS).encode("abcdef")
    assert len(found.ids) < 6


@pytest.mark.parametrize("size", [200, 94**3 + 94**2 + 260])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="ids, not"):
        make_tokenizer(size)


def test_a_directory_with_nothing_but_a_tokenizer_will_do(tmp_path: Path) -> None:
    directory = write_made_tokenizer(tmp_path / "tokenizer", 1000)
    assert main(["--shape", "tiny", "--tokenizer", str(directory), "--out", str(tmp_path / "model")]) == 0
    assert Tokenizer.load(tmp_path / "model").vocab_size == 1000


def test_a_tiny_model_is_written_with_it(tmp_path: Path) -> None:
    made = write_random_model("tiny", None, tmp_path / "tiny")
    assert Tokenizer.load(made).vocab_size == MADE_IDS
