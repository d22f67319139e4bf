"""Tokens go with the content that they make up."""

from __future__ import annotations

import codecs
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extensions.output import TokenText
from extensions.parsing.parts import Content, Reasoning
from extensions.parsing.tokens import ContentTokens


def tokens_of(*pieces: bytes) -> list[TokenText]:
    return [TokenText(token_id=at, text=data.decode("utf-8", "replace"), data=data) for at, data in enumerate(pieces)]


@given(st.binary(max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_content_has_all_of_its_tokens_whatever_their_bytes_and_however_it_comes(data: bytes, cuts: list[int]) -> None:
    pieces = [data[start:end] for start, end in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)])]
    tokens = tokens_of(*(piece for piece in pieces if piece))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    content, found = ContentTokens(), []
    for token in tokens:
        text = decoder.decode(token.data)
        content.add([token])
        if text:
            found += content.take(Content(text))
    assert found + content.take_rest() == tokens


def test_an_unfinished_character_at_the_end_keeps_its_token_after_broken_bytes() -> None:
    content = ContentTokens()
    tokens = tokens_of(b"\xe3", b"ab", b"\x81", b"c", b"\xcc")
    content.add(tokens)
    assert content.take(Content("\ufffdab\ufffdc")) == tokens[:4]
    assert content.take_rest() == tokens[4:]


def test_a_token_that_breaks_a_character_and_begins_another_is_listed_although_no_text_comes_of_it() -> None:
    content = ContentTokens()
    tokens = tokens_of(b"a", b"\xe3", b"\xbe", b"\xcc")
    content.add(tokens[:3])
    assert content.take(Content("a\ufffd")) == tokens[:3]
    content.add(tokens[3:])
    assert content.take_rest() == tokens[3:]


def test_thinking_keeps_its_tokens_to_itself_broken_bytes_and_split_characters_too() -> None:
    content = ContentTokens()
    tokens = tokens_of(b"\xe3", b"a", b"\xf0\x9f", b"\x99\x82", b"\xc3", b"\xa9", b"b")
    content.add(tokens)
    assert content.take(Reasoning("\ufffda🙂")) == []
    assert content.take(Content("éb")) == tokens[4:]
    assert content.take_rest() == []
