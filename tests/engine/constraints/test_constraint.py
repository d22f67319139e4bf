"""What a constraint lets through, on a vocabulary of single bytes and a few words."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from engine.constraints.compiler import ConstraintCompiler
from engine.constraints.constraint import Constraint, ConstraintBroken
from engine.request import ConstraintKind, ConstraintSpec
from tests.engine.constraints.vocabulary import EOS, TOKENS, decode, encode, vocabulary

PERSON = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"enum": ["x", None, 3]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    compiler = ConstraintCompiler(vocabulary)
    yield compiler
    compiler.close()


def of_schema(schema: Any, **options: Any) -> ConstraintSpec:
    return ConstraintSpec(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(schema), **options)


def start(compiler: ConstraintCompiler, spec: ConstraintSpec) -> Constraint:
    return compiler.compile(spec).result(60).fork()


def allowed(constraint: Constraint) -> set[int]:
    mask = constraint.mask()
    assert mask is not None
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def takes(constraint: Constraint, text: str) -> bool:
    """True if the text is whole, and each of its tokens was allowed in its place."""
    for token_id in encode(text):
        if token_id not in allowed(constraint):
            return False
        constraint.advance((token_id,))
    return constraint.is_complete or EOS in allowed(constraint)


def random_text(constraint: Constraint, rng: random.Random, limit: int = 400) -> str | None:
    """A text drawn at random from what is allowed; None if it has no end after `limit` tokens."""
    ids: list[int] = []
    while not constraint.is_complete:
        choices = sorted(allowed(constraint))
        token_id = rng.choice(choices)
        if token_id == EOS:
            break
        constraint.advance((token_id,))
        ids.append(token_id)
        if len(ids) == limit:
            return None
    return decode(ids)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (
            of_schema(PERSON),
            ['{"b":1,"a":"x"}', '{"b": -20, "a": null}', '{\n  "b": 1,\n  "a": 3\n}'],
            ['{"a":3,"b":1}', "{}"],
        ),
        (of_schema(True), ["1", '"x"', "[1, {}]"], ["x"]),
        (of_schema({"type": ["string", "null"]}), ['"a"', "null"], ["1"]),
        (ConstraintSpec(kind=ConstraintKind.JSON_OBJECT), ["{}", '{"a": [1, true]}'], ["[]", "1", " {}"]),
        (ConstraintSpec(kind=ConstraintKind.REGEX, source=r"[a-c]+\d{2}"), ["a12", "cab00"], ["a1", "12", "a123"]),
        (
            ConstraintSpec(kind=ConstraintKind.CHOICE, source='["yes", "no (n)", "日本"]'),
            ["yes", "no (n)", "日本"],
            ["maybe", "no"],
        ),
        (ConstraintSpec(kind=ConstraintKind.LARK, source='start: "a" "b"* "c"'), ["ac", "abbc"], ["ab", "bc"]),
    ],
)
def test_texts_of_the_language_pass_and_others_do_not(
    compiler: ConstraintCompiler, spec: ConstraintSpec, good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not takes(start(compiler, spec), text)] == []
    assert [text for text in bad if takes(start(compiler, spec), text)] == []


@pytest.mark.parametrize("text", ['{"b":1,"a":3} ', '{  "b":1,"a":3}', '{"b":1,\n\n"a":3}', '{"b":1, \n"a":3}'])
def test_whitespace_is_bounded(compiler: ConstraintCompiler, text: str) -> None:
    assert not takes(start(compiler, of_schema(PERSON)), text)


def test_compact_json_has_no_whitespace(compiler: ConstraintCompiler) -> None:
    assert takes(start(compiler, of_schema(PERSON, compact=True)), '{"b":1,"a":3}')
    assert not takes(start(compiler, of_schema(PERSON, compact=True)), '{"b": 1,"a":3}')


def test_a_whitespace_pattern_of_the_clients_own_wins(compiler: ConstraintCompiler) -> None:
    assert takes(start(compiler, of_schema(PERSON, compact=True, whitespace_pattern=r"\t")), '{\t"b":1,"a":3}')


def test_a_schema_cannot_set_options_of_the_library(compiler: ConstraintCompiler) -> None:
    spec = of_schema(PERSON | {"x-guidance": {"whitespace_pattern": r"\s*"}})
    assert not takes(start(compiler, spec), '{      "b":1,"a":3}')


def test_random_texts_of_a_schema_are_valid_and_have_no_trailing_space(compiler: ConstraintCompiler) -> None:
    spec = of_schema(PERSON)
    texts = [random_text(start(compiler, spec), random.Random(seed)) for seed in range(30)]
    whole = [text for text in texts if text is not None]
    assert len(whole) > 10
    for text in whole:
        value = json.loads(text)
        assert set(value) == {"a", "b"}
        assert isinstance(value["b"], int)
        assert value["a"] in ("x", None, 3)
        assert text == text.rstrip()


def test_an_end_is_allowed_only_where_the_text_is_whole(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler, ConstraintSpec(kind=ConstraintKind.REGEX, source="a+"))
    assert allowed(constraint) == {TOKENS.index(b"a")}
    constraint.advance(encode("a"))
    assert allowed(constraint) == {TOKENS.index(b"a"), EOS}
    assert not constraint.is_complete


def test_it_is_complete_as_soon_as_nothing_can_follow(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler, ConstraintSpec(kind=ConstraintKind.CHOICE, source='["yes"]'))
    assert constraint.forced() == encode("yes")
    constraint.advance(encode("yes"))
    assert constraint.is_complete


def test_what_must_follow_is_told_as_the_tokenizer_would_write_it(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler, ConstraintSpec(kind=ConstraintKind.LARK, source=r'start: "{\"name\": " ("1" | "2")'))
    forced = constraint.forced()
    assert decode(forced) == '{"name": '
    assert forced == encode('{"name": ')
    constraint.advance(forced)
    assert allowed(constraint) == {TOKENS.index(b"1"), TOKENS.index(b"2")}


def test_forks_go_their_own_ways(compiler: ConstraintCompiler) -> None:
    first = start(compiler, ConstraintSpec(kind=ConstraintKind.CHOICE, source='["ab", "cd"]'))
    second = first.fork()
    first.advance(encode("a"))
    second.advance(encode("c"))
    assert (decode(first.forced()), decode(second.forced())) == ("b", "d")


def test_a_token_outside_breaks_it_for_good(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler, ConstraintSpec(kind=ConstraintKind.REGEX, source="ab"))
    with pytest.raises(ConstraintBroken):
        constraint.advance(encode("x"))
    with pytest.raises(ConstraintBroken):
        constraint.mask()


def test_a_mask_has_no_bits_for_ids_without_text(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler, ConstraintSpec(kind=ConstraintKind.REGEX, source="(.|\n)+"))
    found = allowed(constraint)
    assert max(found) < len(TOKENS) - 3
    assert EOS not in found
