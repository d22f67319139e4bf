"""Text of tokens that arrive a few at a time."""

from __future__ import annotations

import codecs
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.text.detokenizer import DecodedToken, IncrementalDetokenizer, Piece
from engine.text.model import TextModel
from engine.text.tokenizer import Tokenizer
from tests.engine.text.vocabularies import SPECIAL, byte_level, metaspace, sentencepiece

BYTE_LEVEL = Tokenizer(byte_level())
SENTENCEPIECE = Tokenizer(sentencepiece())
METASPACE = Tokenizer(metaspace())
TOKENIZERS = pytest.mark.parametrize(
    "tokenizer", [BYTE_LEVEL, SENTENCEPIECE, METASPACE], ids=["bytes", "pieces", "metaspace"]
)


def token_lists(tokenizer: Tokenizer) -> st.SearchStrategy[list[list[int]]]:
    """Any ids, padding ids included, in any grouping; parts of characters are likely."""
    ids = st.integers(0, tokenizer.vocab_size + 3)
    emoji = st.sampled_from(tokenizer.encode("🙂é日", add_special=False) or [0])
    return st.lists(st.lists(ids | emoji, max_size=5), max_size=8)


def run(
    tokenizer: Tokenizer, groups: list[list[int]], *, skip_special: bool = True, prompt_tail: list[int] | None = None
) -> tuple[list[str], list[DecodedToken]]:
    """Pushes all groups; returns the pieces' texts and all tokens, those of an unfinished character last."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special, prompt_tail=prompt_tail or [])
    pieces = [detokenizer.push(group) for group in groups]
    num_chars = 0
    for piece in pieces:
        num_chars += len(piece.text)
        assert all(token.end <= num_chars for token in piece.tokens)
    assert all(token.end == num_chars + 1 for token in detokenizer.waiting if token.data)
    tokens = [token for piece in pieces for token in piece.tokens]
    return [piece.text for piece in pieces], [*tokens, *detokenizer.waiting]


def whole_characters(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> str:
    """What the library's text has of finished characters."""
    shown = [token_id for token_id in ids if not (skip_special and token_id in tokenizer.special_ids)]
    raw = b"".join(tokenizer.token_bytes(token_id) for token_id in shown)
    text = tokenizer.decode(ids, skip_special=skip_special)
    _, num_read = codecs.utf_8_decode(raw, "replace", False)
    return text if num_read == len(raw) else text.removesuffix("\ufffd")


@TOKENIZERS
@given(data=st.data(), skip_special=st.booleans())
def test_pieces_joined_are_all_whole_characters(tokenizer: Tokenizer, data: st.DataObject, skip_special: bool) -> None:
    groups = data.draw(token_lists(tokenizer))
    ids = [token_id for group in groups for token_id in group]
    texts, tokens = run(tokenizer, groups, skip_special=skip_special)
    assert "".join(texts) == whole_characters(tokenizer, ids, skip_special=skip_special)
    assert [token.token_id for token in tokens] == ids


@TOKENIZERS
@given(data=st.data())
def test_each_token_says_where_its_bytes_are(tokenizer: Tokenizer, data: st.DataObject) -> None:
    texts, tokens = run(tokenizer, data.draw(token_lists(tokenizer)))
    text = "".join(texts)
    raw = b"".join(token.data for token in tokens)
    if raw.decode("utf-8", "replace").encode() == raw:
        assert raw == text.encode()
    is_unfinished = codecs.utf_8_decode(raw, "replace", False)[1] < len(raw)
    for token, after in pairwise(tokens):
        assert 0 <= token.start <= token.end <= len(text) + is_unfinished
        assert token.start <= after.start
        assert token.end <= after.end or not after.data
    for token in tokens:
        part = text[token.start : token.end]
        if "\ufffd" not in part and token.end <= len(text):
            assert token.data in part.encode()
            assert len(part.encode()) - len(token.data) <= 6


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    assume("\ufffd" not in text)
    ids = BYTE_LEVEL.encode(text, add_special=False)
    texts, _ = run(BYTE_LEVEL, [[token_id] for token_id in ids], skip_special=False)
    assert all("\ufffd" not in piece for piece in texts)
    assert "".join(texts) == text


@TOKENIZERS
@pytest.mark.parametrize("skip_special", [True, False])
@given(data=st.data())
def test_whole_tokens_taken_the_short_way_are_the_same_text(
    tokenizer: Tokenizer, data: st.DataObject, skip_special: bool
) -> None:
    ids = [token_id for group in data.draw(token_lists(tokenizer)) for token_id in group]
    short, long = (IncrementalDetokenizer(tokenizer, skip_special=skip_special) for _ in range(2))
    for token_id in ids:
        text = short.push_whole(token_id)
        if text is None:
            text = short.push([token_id]).text
        assert text == long.push([token_id]).text
        assert (short.first_waiting, list(short.waiting)) == (long.first_waiting, list(long.waiting))


def test_a_character_split_over_tokens_arrives_whole_with_all_its_tokens() -> None:
    ids = [byte_id(byte) for byte in "🙂".encode()]
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert [detokenizer.push([token_id]) for token_id in ids[:3]] == [Piece("", [])] * 3
    piece = detokenizer.push(ids[3:])
    assert piece.text == "🙂"
    assert [(token.start, token.end) for token in piece.tokens] == [(0, 1)] * 4
    assert b"".join(token.data for token in piece.tokens) == "🙂".encode()


def test_an_unfinished_character_waits_with_its_tokens() -> None:
    lead = byte_id(0xE2)
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    assert detokenizer.push([lead]) == Piece("", [])
    assert detokenizer.waiting == [DecodedToken(lead, b"\xe2", 0, 1, False)]
    assert detokenizer.push([byte_id(0x82), byte_id(0xAC)]).text == "€"
    assert not detokenizer.waiting


def test_a_broken_character_is_replaced_as_soon_as_nothing_can_mend_it() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL)
    detokenizer.push([byte_id(0xE2)])
    piece = detokenizer.push([byte_id(0x41)])
    assert piece.text == "\ufffdA"
    assert [(token.start, token.end) for token in piece.tokens] == [(0, 1), (1, 2)]


def test_special_tokens_are_hidden_but_still_reported() -> None:
    ids = BYTE_LEVEL.encode(f"a{SPECIAL[1]}b", add_special=False)
    texts, tokens = run(BYTE_LEVEL, [ids])
    assert "".join(texts) == "ab"
    assert [token.is_hidden for token in tokens] == [False, True, False]
    assert tokens[1].data == b""


def test_any_token_can_be_hidden() -> None:
    detokenizer = IncrementalDetokenizer(BYTE_LEVEL, skip_special=False)
    piece = detokenizer.push(BYTE_LEVEL.encode("hello", add_special=False), hide=True)
    assert piece.text == ""
    assert all(token.is_hidden for token in piece.tokens)


@pytest.mark.parametrize("tokenizer", [SENTENCEPIECE, METASPACE], ids=["pieces", "metaspace"])
def test_the_first_space_is_dropped_at_the_start_of_a_text_only(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("hello world", add_special=False)
    assert "".join(run(tokenizer, [ids])[0]) == "hello world"
    assert "".join(run(tokenizer, [ids], prompt_tail=ids)[0]) == " hello world"


def test_hidden_special_tokens_do_not_count_as_the_start_of_a_text() -> None:
    bos = SENTENCEPIECE.encode("<s>", add_special=False)
    ids = SENTENCEPIECE.encode("hello", add_special=False)
    assert "".join(run(SENTENCEPIECE, [bos, ids])[0]) == "hello"
    assert "".join(run(SENTENCEPIECE, [ids], prompt_tail=bos)[0]) == "hello"
    assert "".join(run(SENTENCEPIECE, [bos, ids], skip_special=False)[0]) == "<s> hello"


def test_a_character_that_the_prompt_began_is_completed() -> None:
    prompt = [byte_id(0x61), byte_id(0xC3)]
    texts, _ = run(BYTE_LEVEL, [[byte_id(0xA9)]], prompt_tail=prompt)
    assert "".join(texts) == "é"


def byte_id(byte: int) -> int:
    """The token that stands for one byte."""
    return next(at for at in range(BYTE_LEVEL.vocab_size) if BYTE_LEVEL.token_bytes(at) == bytes([byte]))


@pytest.mark.real_model
@given(data=st.data())
def test_real_pieces_joined_are_all_whole_characters(smollm2: TextModel, data: st.DataObject) -> None:
    tokenizer = smollm2.tokenizer
    groups = data.draw(token_lists(tokenizer))
    ids = [token_id for group in groups for token_id in group]
    texts, tokens = run(tokenizer, groups)
    assert "".join(texts) == whole_characters(tokenizer, ids)
    assert [token.token_id for token in tokens] == ids
