"""Tokenizers rebuilt from GGUF metadata."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from engine.errors import ModelLoadError
from engine.gguf_metadata import read_metadata
from engine.text.gguf_tokenizer import load_gguf
from engine.text.pre_tokenizers import pre_tokenizer_named
from engine.text.tokenizer import Tokenizer
from tests.engine.text.vocabularies import (
    SPECIAL,
    USER_DEFINED,
    byte_level,
    byte_level_parts,
    sentencepiece,
    sentencepiece_tokens,
    token_id,
    write_gguf,
)

text_strategy = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.fixture(scope="module")
def byte_level_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = byte_level()
    ids = {"bos_token_id": token_id(library, SPECIAL[0]), "eos_token_id": token_id(library, SPECIAL[1])}
    path = tmp_path_factory.mktemp("gguf") / "bytes.gguf"
    return write_gguf(path, **byte_level_parts(library), ids=ids, flags={"add_bos_token": True})


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokens, scores, types = sentencepiece_tokens()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = tmp_path_factory.mktemp("gguf") / "pieces.gguf"
    return write_gguf(path, model="llama", pre="default", tokens=tokens, scores=scores, types=types, ids=ids)


@given(text=text_strategy)
def test_a_byte_level_tokenizer_comes_back_as_it_was(byte_level_file: Path, text: str) -> None:
    assert loaded(byte_level_file).encode(text, add_special=False) == byte_library.encode(text).ids


def test_token_types_make_special_and_user_defined_tokens(byte_level_file: Path) -> None:
    tokenizer = loaded(byte_level_file)
    ids = tokenizer.encode(f"a{USER_DEFINED}{SPECIAL[1]}", add_special=True)
    assert ids[0] == tokenizer.bos_token_id
    assert len(ids) == 4
    assert tokenizer.decode(ids) == f"a{USER_DEFINED}"
    assert len(tokenizer.special_ids) == len(SPECIAL)


@given(text=st.text(alphabet="the hello world wor.,!éx🙂", max_size=30))
def test_a_sentencepiece_tokenizer_equals_the_one_of_a_directory(sentencepiece_file: Path, text: str) -> None:
    tokenizer = loaded(sentencepiece_file)
    assert tokenizer.encode(text, add_special=False) == piece_library.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@given(text=st.text(alphabet="the hello world wor.,!éx🙂", max_size=30))
def test_a_sentencepiece_tokenizer_merges_the_best_score_first(sentencepiece_file: Path, text: str) -> None:
    tokens, scores, _ = sentencepiece_tokens()
    assert loaded(sentencepiece_file).encode(text, add_special=False) == merge_greedily(text, tokens, scores)


def merge_greedily(text: str, tokens: list[str], scores: list[float]) -> list[int]:
    """Sentencepiece's rule in its plainest form: join the neighbours that make the best token, leftmost first."""
    ids = {token: at for at, token in enumerate(tokens)}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joins = [(-scores[ids[a + b]], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not joins:
            break
        at = min(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [one for part in parts for one in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])]


def test_a_sentencepiece_tokenizer_opens_with_its_first_token_unless_told_otherwise(
    sentencepiece_file: Path, tmp_path: Path
) -> None:
    tokens, scores, types = sentencepiece_tokens()
    silent = write_gguf(
        tmp_path / "silent.gguf",
        model="llama",
        tokens=tokens,
        scores=scores,
        types=types,
        ids={"bos_token_id": 1},
        flags={"add_bos_token": False, "add_space_prefix": False},
    )
    assert loaded(sentencepiece_file).encode("hello", add_special=True)[0] == 1
    tokenizer = Tokenizer.load(silent)
    assert [tokenizer.token_text(one) for one in tokenizer.encode("he", add_special=True)] == ["he"]
    assert tokenizer.decode(tokenizer.encode(" hello", add_special=False)) == " hello"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [("qwen2", PRETOKENIZE_REGEX), ("llama-bpe", TikTokenConverter().pattern)],
)
@given(text=text_strategy | st.text(alphabet="aB 'sLl19\n\r\t.é中", max_size=30))
def test_words_are_cut_as_the_original_tokenizers_cut_them(name: str, pattern: str, text: str) -> None:
    original = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
    words = [(text[start:end], (start, end)) for _, (start, end) in original.pre_tokenize_str(text)]
    ours = pre_tokenizer_named(name).pre_tokenizer.pre_tokenize_str(text)
    assert [span for _, span in ours] == [span for _, span in words]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("default", ["a", "12", "345", "6", "=>", "b"]),
        ("gpt-2", ["a", "123456", "=>", "b"]),
        ("smollm", ["a", "1", "2", "3", "4", "5", "6", "=>", "b"]),
        ("llama-bpe", ["a", "123", "456", "=>", "b"]),
        ("qwen2", ["a", "1", "2", "3", "4", "5", "6", "=>", "b"]),
        ("tekken", ["a", "1", "2", "3", "4", "5", "6", "=>", "b"]),
    ],
)
def test_each_name_cuts_digits_and_symbols_in_its_own_way(name: str, words: list[str]) -> None:
    cut = [word for word, _ in pre_tokenizer_named(name).pre_tokenizer.pre_tokenize_str("a123456=>b")]
    assert cut == (["a", "123", "456", "=>", "b"] if name == "default" else words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "'bert' is not supported"),
        ({"pre": "made-up"}, "pre-tokenizer 'made-up' is not supported"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["zz qq"]}, "inconsistent"),
        ({"tokens": None}, "tokens is missing"),
        ({"tokens": ["a", "b", "a"]}, "'a' is listed twice"),
        ({"model": "llama"}, "scores does not hold one number a token"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_with_the_reason(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "bad.gguf", **{**byte_level_parts(byte_library), **change})
    with pytest.raises(ModelLoadError, match=message) as caught:
        Tokenizer.load(path)
    assert str(path) in caught.value.message


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"nothing\.gguf"):
        Tokenizer.load(tmp_path / "nothing.gguf")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGML" + bytes(40), b"GGUF" + struct.pack("<IQQ", 9, 0, 0)])
def test_what_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match="not a readable GGUF file"):
        load_gguf(path)


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_cut_off_anywhere_in_its_head_is_refused(
    byte_level_file: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = byte_level_file.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 100))])
    with pytest.raises(ModelLoadError):
        load_gguf(path)


def test_metadata_equals_what_the_gguf_library_reads(byte_level_file: Path) -> None:
    fields = GGUFReader(byte_level_file).fields
    expected = {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}
    assert read_metadata(byte_level_file) == expected
    for one, value in expected.items():
        assert read_metadata(byte_level_file, one.__eq__) == {one: value}


byte_library = byte_level()
piece_library = sentencepiece()
_LOADED: dict[Path, Tokenizer] = {}


def loaded(path: Path) -> Tokenizer:
    """Loads each file once."""
    if path not in _LOADED:
        _LOADED[path] = Tokenizer.load(path)
    return _LOADED[path]
