"""Text to ids and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, processors

from engine.errors import ModelLoadError
from engine.text.errors import InvalidText, TextTooLong
from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from tests.engine.text.vocabularies import (
    SPECIAL,
    USER_DEFINED,
    add_bos_rule,
    byte_level,
    metaspace,
    sentencepiece,
    write_directory,
)

byte_library = byte_level()
BYTE_LEVEL = Tokenizer(byte_library)
SENTENCEPIECE = Tokenizer(sentencepiece())
text_strategy = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def test_a_directory_gives_its_tokenizer_with_the_configured_opening_token(tmp_path: Path) -> None:
    config = {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1]}, "add_bos_token": True}
    tokenizer = Tokenizer.load(write_directory(tmp_path, byte_level(), config))
    assert tokenizer.bos_token_id == tokenizer.vocab_size - 3
    plain = tokenizer.encode("hello world", add_special=False)
    assert tokenizer.encode("hello world", add_special=True) == [tokenizer.bos_token_id, *plain]
    assert tokenizer.decode(plain) == "hello world"


def test_the_opening_token_of_the_rules_is_used_unless_the_configuration_forbids_it(tmp_path: Path) -> None:
    library = byte_level()
    add_bos_rule(library, SPECIAL[0])
    ruled = Tokenizer.load(write_directory(tmp_path / "a", library, {"bos_token": SPECIAL[0]}))
    forbidden = Tokenizer.load(
        write_directory(tmp_path / "b", library, {"bos_token": SPECIAL[0], "add_bos_token": False})
    )
    assert ruled.encode("x", add_special=True)[0] == ruled.bos_token_id
    assert ruled.encode("x", add_special=False) == forbidden.encode("x", add_special=True)


def test_a_text_that_opens_with_the_opening_token_does_not_get_a_second_one(tmp_path: Path) -> None:
    config = {"bos_token": SPECIAL[0], "add_bos_token": True}
    tokenizer = Tokenizer.load(write_directory(tmp_path, byte_level(), config))
    assert tokenizer.encode(SPECIAL[0] + "x", add_special=True) == tokenizer.encode(SPECIAL[0] + "x", add_special=False)


def test_a_directory_without_configuration_has_no_opening_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write_directory(tmp_path, byte_level()))
    assert tokenizer.bos_token_id is None
    assert tokenizer.encode("x", add_special=True) == tokenizer.encode("x", add_special=False)


def test_tokens_that_only_the_configuration_calls_special_are_special(tmp_path: Path) -> None:
    library = byte_level()
    end_id = library.token_to_id(USER_DEFINED)
    next_id = library.get_vocab_size()
    config = {
        "eos_token": USER_DEFINED,
        "added_tokens_decoder": {str(next_id): {"content": "<|new|>", "special": True}},
        "additional_special_tokens": ["<|unknown to the vocabulary|>"],
    }
    tokenizer = Tokenizer.load(write_directory(tmp_path, library, config))
    assert {end_id, next_id} <= tokenizer.special_ids
    assert tokenizer.vocab_size == next_id + 1
    assert tokenizer.encode("a<|new|>", add_special=False)[-1] == next_id


def test_a_directory_with_a_sentencepiece_file_only_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.model alone is not supported"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Nothing"}}'])
def test_a_damaged_tokenizer_file_is_refused_with_its_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: not a readable tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_damaged_configuration_is_refused_with_its_path(tmp_path: Path) -> None:
    write_directory(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: not readable as JSON"):
        Tokenizer.load(tmp_path)


def test_a_decoder_without_bytes_of_its_own_is_refused(tmp_path: Path) -> None:
    library = byte_level()
    library.decoder = decoders.WordPiece()
    with pytest.raises(ModelLoadError, match="WordPiece is not supported"):
        Tokenizer.load(write_directory(tmp_path, library))


def test_limits_stored_with_a_tokenizer_do_not_cut_prompts(tmp_path: Path) -> None:
    library = byte_level()
    library.enable_truncation(4)
    library.enable_padding(length=8)
    tokenizer = Tokenizer.load(write_directory(tmp_path, library))
    assert len(tokenizer.encode("a b c d e f g h i j", add_special=False)) > 8
    assert len(tokenizer.encode("a", add_special=False)) == 1


@given(text_strategy)
def test_byte_level_text_comes_back_unchanged(text: str) -> None:
    ids = BYTE_LEVEL.encode(text, add_special=False)
    assert BYTE_LEVEL.decode(ids, skip_special=False) == text
    assert b"".join(map(BYTE_LEVEL.token_bytes, ids)) == text.encode()


@given(text_strategy)
def test_sentencepiece_text_comes_back_unchanged(text: str) -> None:
    assume(not any(token in text for token in ("<s>", "</s>", "<unk>", "▁")))
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text, add_special=False)) == text


@pytest.mark.parametrize("library", [byte_level(), sentencepiece(), metaspace()], ids=["bytes", "pieces", "metaspace"])
@given(data=st.data())
def test_decoding_equals_the_library(library: Library, data: st.DataObject) -> None:
    tokenizer = Tokenizer(library)
    text = data.draw(st.text(alphabet="hello wrdtab xyz🙂é", max_size=20))
    ids = [*data.draw(st.lists(st.sampled_from(sorted(tokenizer.special_ids)), max_size=2))]
    ids += tokenizer.encode(text, add_special=False)
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special=skip) == library.decode(ids, skip_special_tokens=skip)


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size - 1), max_size=30))
def test_decoding_any_byte_level_ids_equals_the_library(ids: list[int]) -> None:
    assert BYTE_LEVEL.decode(ids) == byte_library.decode(ids, skip_special_tokens=True)


def test_special_tokens_in_text_become_themselves_and_are_hidden_on_request() -> None:
    ids = BYTE_LEVEL.encode(f"a{SPECIAL[1]}b", add_special=False)
    assert len(ids) == 3
    assert ids[1] in BYTE_LEVEL.special_ids
    assert BYTE_LEVEL.decode(ids) == "ab"
    assert BYTE_LEVEL.decode(ids, skip_special=False) == f"a{SPECIAL[1]}b"


def test_bytes_of_every_kind_of_token() -> None:
    emoji = BYTE_LEVEL.encode("👩", add_special=False)
    assert b"".join(map(BYTE_LEVEL.token_bytes, emoji)) == "👩".encode()
    assert BYTE_LEVEL.token_bytes(min(BYTE_LEVEL.special_ids)) == SPECIAL[0].encode()
    assert SENTENCEPIECE.token_bytes(3 + 0x0A) == b"\n"
    assert SENTENCEPIECE.token_bytes(SENTENCEPIECE.encode("hello", add_special=False)[0]) == b" hello"
    assert SENTENCEPIECE.token_bytes(3 + 0xE2) == b"\xe2"
    assert SENTENCEPIECE.token_text(3 + 0xE2) == "\ufffd"


@pytest.mark.parametrize("token_id", [-1, BYTE_LEVEL.vocab_size, 10**9])
def test_padding_ids_beyond_the_tokenizer_have_no_bytes(token_id: int) -> None:
    assert BYTE_LEVEL.token_bytes(token_id) == b""
    assert BYTE_LEVEL.decode([token_id]) == ""


@pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("ab\udfffc", 2), ("é\ud83dx", 1)])
def test_a_lone_surrogate_is_refused_with_its_place(text: str, position: int) -> None:
    with pytest.raises(InvalidText, match="lone surrogate") as caught:
        BYTE_LEVEL.encode(text, add_special=False)
    assert caught.value.position == position


def test_text_over_the_given_length_is_refused_unread() -> None:
    with pytest.raises(TextTooLong) as caught:
        BYTE_LEVEL.encode("\ud800" * 11, add_special=False, max_chars=10)
    assert (caught.value.num_chars, caught.value.max_chars) == (11, 10)


@pytest.mark.real_model
def test_the_real_tokenizer_splits_digits_and_parses_chat_tokens(smollm2: TextModel) -> None:
    tokenizer = smollm2.tokenizer
    assert tokenizer.vocab_size == 49152
    assert [tokenizer.token_text(one) for one in tokenizer.encode("in 2024", add_special=True)] == [
        "in", " ", "2", "0", "2", "4",
    ]  # fmt: skip
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>", add_special=False)
    assert ids[0] == tokenizer.bos_token_id == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "user\nhi"


@pytest.mark.real_model
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Co"]), max_size=60))
def test_real_text_comes_back_unchanged(smollm2: TextModel, text: str) -> None:
    ids = smollm2.tokenizer.encode(text, add_special=False)
    assert smollm2.tokenizer.decode(ids, skip_special=False) == text


def closing_rule(library: Library, token: str) -> Library:
    """Has the tokenizer's own rules put a token behind a text."""
    token_id = library.token_to_id(token)
    library.post_processor = processors.TemplateProcessing(single=f"$A {token}", special_tokens=[(token, token_id)])
    return library


def test_the_tokens_that_end_a_text_to_embed_are_those_of_the_rules_or_of_the_configuration(tmp_path: Path) -> None:
    ruled, plain = closing_rule(byte_level(), SPECIAL[1]), byte_level()
    end = plain.token_to_id(SPECIAL[1])
    config = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}

    def closing(name: str, library: Library, **more: object) -> tuple[int, ...]:
        return Tokenizer.load(write_directory(tmp_path / name, library, {**config, **more})).closing_ids

    assert closing("a", plain) == ()
    assert closing("b", ruled) == (end,)
    assert closing("c", plain, add_eos_token=True) == (end,)
    assert closing("d", ruled, add_eos_token=False) == ()
    add_bos_rule(plain, SPECIAL[0])
    assert closing("e", plain) == ()
