"""Texts that surely do not fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from tests.engine.text.vocabularies import byte_level, metaspace, sentencepiece


def with_normalizer(*steps: Any) -> Library:
    library = byte_level()
    library.normalizer = normalizers.Sequence(list(steps))
    return library


TOKENIZERS = {
    "bytes": Tokenizer(byte_level()),
    "pieces": Tokenizer(sentencepiece()),
    "metaspace": Tokenizer(metaspace()),
    "composed": Tokenizer(with_normalizer(normalizers.NFC())),
    "stripped": Tokenizer(with_normalizer(normalizers.Strip())),
}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
    | st.text(alphabet="e\u0301\u0323 ", max_size=80)
    | st.builds(str.__mul__, st.sampled_from(["  ", "hello ", "日"]), st.integers(1, 300)),
    limit=st.integers(1, 12),
)
def test_a_text_that_fits_is_never_refused(name: str, text: str, limit: int) -> None:
    tokenizer = TOKENIZERS[name]
    if tokenizer.cannot_fit(text, limit):
        assert len(tokenizer.encode(text, add_special=False)) > limit


@pytest.mark.parametrize("name", ["bytes", "pieces", "composed"])
def test_a_text_far_too_long_is_refused_unread(name: str) -> None:
    assert TOKENIZERS[name].cannot_fit("a" * 100_000, 100)
    assert not TOKENIZERS[name].cannot_fit("a" * 100, 100)


def test_nothing_is_refused_where_any_length_may_be_one_token() -> None:
    assert not TOKENIZERS["metaspace"].cannot_fit("é" * 100_000, 1)
    assert not TOKENIZERS["stripped"].cannot_fit(" " * 100_000, 1)
    eager = byte_level()
    eager.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert not Tokenizer(eager).cannot_fit(" " * 100_000 + "<mask>", 1)
    removing = byte_level()
    split = pre_tokenizers.Split(Regex("x+"), "removed")
    removing.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    assert not Tokenizer(removing).cannot_fit("x" * 100_000, 1)


@pytest.mark.real_model
def test_characters_that_the_real_vocabulary_drops_do_not_count(smollm2: TextModel) -> None:
    tokenizer = smollm2.tokenizer
    assert not tokenizer.cannot_fit("\x04" * 100_000, 10)
    assert tokenizer.encode("\x04" * 100, add_special=False) == []
    assert tokenizer.cannot_fit("a" * 100_000, 10)
