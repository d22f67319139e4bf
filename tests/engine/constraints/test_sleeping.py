"""Calls amid free text: what is free, what is held, and that no text has a call whose arguments do not match."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pytest

from engine.constraints.compiler import ConstraintCompiler
from engine.constraints.constraint import Constraint, ConstraintBroken
from engine.constraints.vocabulary import VocabularyBytes
from engine.request import ConstraintKind, ConstraintSpec
from extensions.parsing.answers import AnswerPlan
from extensions.parsing.forced import call_grammar, thought_grammar
from extensions.parsing.formats import FORMATS, FormatName
from extensions.parsing.held import held_calls
from extensions.parsing.parts import CallArguments, CallStart, Content, Part
from extensions.parsing.reasoning import Thinking

EOS, MARK, HIDDEN, ARGS = 256, 257, 258, 259
WORDS = [
    *(b"<tool_call>", b"call>{", b"call>x", b">[{", b"</tool_call>", b"\n{", b'{"', b'{"name": "', b'"name": "f", '),
    *(
        b'"arguments"',
        b'": {"',
        b": {}}",
        b": {",
        b"}}",
        b"}}\n",
        b"}},{",
        b"}}{",
        b"[{",
        b"```json\n",
        b"```",
        b'"city"',
    ),
    *(
        b'"Oslo"',
        b'"Rome"',
        b"[f(",
        b"f(",
        b'city="',
        b"</think>",
        b"<think>",
        b'{"type": "function", ',
        b'"function": ',
    ),
]
SPECIAL = [b"<end>", b"[TOOL_CALLS]", b"<|hidden|>", b"[ARGS]"]
TOKENS = [bytes([byte]) for byte in range(256)] + SPECIAL + WORDS
THINK = Thinking(start="<think>", end="</think>")
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Lima"]}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
GOOD = '{"name": "f", "arguments": {"city": "Oslo"}}'
BAD = '{"name": "f", "arguments": {"city": "Rome"}}'


def encode(text: str) -> list[int]:
    """Words where they fit, else bytes."""
    data, ids, at = text.encode(), [], 0
    by_length = sorted((*WORDS, *SPECIAL), key=len, reverse=True)
    while at < len(data):
        word = next((word for word in by_length if data.startswith(word, at)), data[at : at + 1])
        ids.append(TOKENS.index(word))
        at += len(word)
    return ids


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    vocabulary = VocabularyBytes(
        tokens=TOKENS, special_ids=(EOS, MARK, HIDDEN, ARGS), eos_token_ids=(EOS,), encode=encode
    )
    compiler = ConstraintCompiler(lambda: vocabulary)
    yield compiler
    compiler.close()


def spec_of(name: FormatName = "hermes", thinking: Thinking | None = None) -> ConstraintSpec:
    special = {"[ARGS]": ARGS}
    return held_calls({"f": CITY, "g": None}, ["f", "g"], FORMATS[name], thinking=thinking, special_id=special.get)


def start(compiler: ConstraintCompiler, name: FormatName = "hermes", thinking: Thinking | None = None) -> Constraint:
    return compiler.compile(spec_of(name, thinking)).result(60).fork()


def allowed(constraint: Constraint) -> Collection[int]:
    mask = constraint.mask()
    if mask is None:
        return range(len(TOKENS))
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def held_from(constraint: Constraint, text: str) -> str | None:
    """What of a text comes after the first character that may not; None if all of it may."""
    for at, token_id in enumerate(text.encode()):
        if not constraint.allows(token_id):
            return text[at:]
        constraint.advance((token_id,))
    return None


@pytest.mark.parametrize(
    "text",
    [
        'Some {"text": [1]} and <b>more</b>.\n\n- a < b\n[1, 2]\n',
        '{"name": "Bob", "age": 3}\n{"name": "f"}\n[{"a": 1}]',
        '{"name": "h", "arguments": {"city": 1}}',
        f'In a line {BAD}, or "quoted {BAD}"',
        '```python\nx = {"a": [f(1)]}\n```',
        "<tool_cal>[f(1)]",
    ],
)
def test_what_is_no_call_is_free(compiler: ConstraintCompiler, text: str) -> None:
    constraint = start(compiler)
    assert held_from(constraint, text) is None
    assert constraint.allows(EOS)
    assert constraint.allows(HIDDEN)


def test_plain_text_has_no_mask_whatever_its_bytes(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler)
    for token_id in (*b"Hello \xff\x80 there\n", HIDDEN, *b"x" * 3000, *b"\n" * 2000):
        constraint.advance((token_id,))
        assert constraint.is_free
        assert constraint.mask() is None
        assert constraint.forced() == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f"So: <tool_call>\n{BAD}"),
        ("hermes", BAD),
        ("hermes", f"Text.\n  {BAD}"),
        ("hermes", f"```json\n{BAD}"),
        ("hermes", f"[{GOOD}, {BAD}"),
        ("hermes", f"{GOOD}{BAD}"),
        ("hermes", f"<tool_call>{GOOD}</tool_call>{BAD}"),
        ("hermes", f"<tool_call>{GOOD}\n</tool_call>{BAD}"),
        ("hermes", f"{GOOD}\n,; {BAD}"),
        ("hermes", f"[{BAD}"),
        ("hermes", BAD.replace('{"name', '{"type": "function", "name').replace("arguments", "parameters")),
        ("hermes", f'{{"type": "function", "function": {BAD}'),
        ("smollm2", f"<tool_call>[{BAD}"),
        ("llama3_json", f"<|python_tag|>{BAD}"),
        ("llama_pythonic", '[f(city="Rome"'),
        ("llama_pythonic", '<|python_start|>[g(), f(city="Rome"'),
        ("mistral", f"[TOOL_CALLS] [{BAD}"),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"city": "Rome"'),
        ("generic", f"<tool_call>{BAD}"),
    ],
)
def test_arguments_of_calls_are_held(compiler: ConstraintCompiler, name: FormatName, text: str) -> None:
    rest = held_from(start(compiler, name), text)
    assert rest is not None
    assert rest.startswith("Rome")


@pytest.mark.parametrize("wrong", ["foo", '{"name": "h"', '{"args', "[]", "<"])
def test_behind_a_marker_only_a_call_of_a_given_tool_can_follow(compiler: ConstraintCompiler, wrong: str) -> None:
    constraint = start(compiler)
    constraint.advance(encode("Well, <tool_call>"))
    assert held_from(constraint, wrong) is not None
    assert not constraint.allows(EOS)
    assert not constraint.allows(HIDDEN)


def test_tokens_that_would_begin_a_call_and_go_on_wrongly_are_left_out(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler)
    constraint.advance(b"<tool_")
    assert constraint.allows(TOKENS.index(b"call>{"))
    assert not constraint.allows(TOKENS.index(b"call>x"))
    constraint = start(compiler)
    constraint.advance(b'{"name": "f", "arguments"')
    assert constraint.allows(TOKENS.index(b": {"))
    assert not constraint.allows(TOKENS.index(b": {}}"))


def test_text_is_free_again_behind_a_call(compiler: ConstraintCompiler) -> None:
    for text in (GOOD, f"<tool_call>{GOOD}</tool_call>", f"[{GOOD}]"):
        constraint = start(compiler)
        constraint.advance([*text.encode(), *b" and so \xff on"])
        assert constraint.is_free


def test_a_marker_may_be_a_special_token(compiler: ConstraintCompiler) -> None:
    constraint = start(compiler, "mistral")
    constraint.advance((*b"Text [", MARK))
    assert not constraint.allows(TOKENS.index(b"x"))
    constraint.advance((*b"f", ARGS, *b'{"city": "'))
    assert set(allowed(constraint)) <= {ord("O"), ord("L"), *(TOKENS.index(b"Oslo"[:1]),)}


@pytest.mark.parametrize("is_open", [True, False])
def test_thinking_is_free_and_what_follows_is_held(compiler: ConstraintCompiler, is_open: bool) -> None:
    thinking = Thinking(start="<think>", end="</think>", is_open=is_open)
    thought = f"{'' if is_open else '<think>'}<tool_call>no\n{BAD}</think>"
    for text in (f"{thought}{BAD}", f"{thought}\n\nSo.\n{BAD}"):
        rest = held_from(start(compiler, thinking=thinking), text)
        assert rest is not None
        assert rest.startswith("Rome")
        assert len(rest) < 10


def test_a_demanded_call_may_follow_thinking_whose_markers_are_special_tokens(compiler: ConstraintCompiler) -> None:
    thought = thought_grammar("<think>", "</think>", is_open=False, special_ids=(MARK, HIDDEN))
    source = call_grammar({"g": None}, is_parallel=False, thought=thought)
    constraint = compiler.compile(ConstraintSpec(kind=ConstraintKind.LARK, source=source)).result(60).fork()
    constraint.advance((MARK, *b"so {", HIDDEN))
    assert not constraint.allows(ord("x"))
    constraint.advance(encode('{"name": "g", "arguments": {}}'))
    assert constraint.is_complete


def test_forks_go_their_own_ways(compiler: ConstraintCompiler) -> None:
    first = start(compiler)
    first.advance(encode("<tool_call>"))
    second = first.fork()
    first.advance(GOOD.encode())
    assert first.is_free
    assert not second.is_free
    with pytest.raises(ConstraintBroken):
        second.advance(b"x")


@pytest.mark.parametrize("name", ["hermes", "smollm2", "llama3_json", "llama_pythonic", "mistral", "generic"])
@pytest.mark.parametrize("block", range(4))
def test_whatever_is_written_no_call_has_arguments_that_do_not_match(
    compiler: ConstraintCompiler, name: FormatName, block: int
) -> None:
    """Pieces of calls, good and bad, in any order, and random tokens between them, as far as they are allowed."""
    rng = random.Random(f"{name} {block}")
    thinking = THINK if block % 2 else None
    spec = spec_of(name, thinking)
    assert spec.opening is not None
    markers = [*spec.opening.markers, *spec.opening.closers]
    num_calls = 0
    for _ in range(60):
        constraint = start(compiler, name, thinking)
        ids: list[int] = []
        while len(ids) < 160:
            for token_id in _piece(rng, markers):
                if not constraint.allows(token_id):
                    token_id = rng.choice([one for one in allowed(constraint) if one != EOS] or [EOS])
                if token_id == EOS:
                    break
                constraint.advance((token_id,))
                ids.append(token_id)
        shown = b"".join(TOKENS[token_id] for token_id in ids if token_id != HIDDEN)
        plan = AnswerPlan(thinking=thinking, tool_format=FORMATS[name], names=("f", "g"), is_held=True)
        calls = _calls(plan, shown.decode("utf-8", "replace"), is_whole=constraint.is_free)
        for called, arguments in calls:
            value = json.loads(arguments)
            assert called in ("f", "g")
            assert value == {} if called == "g" else value["city"] in ("Oslo", "Lima"), (shown, arguments)
            assert not value.keys() - {"city", "days"}
        num_calls += len(calls)
    assert num_calls > 5


def _piece(rng: random.Random, markers: list[str]) -> list[int]:
    """Something that belongs to a call, whole or cut, spelled in one way or another."""
    parts = [
        GOOD,
        BAD,
        '{"name": "g", "arguments": {}}',
        '{"name": "f"',
        ', "arguments": {"city": "Rome"}}',
        "[",
        "]",
        "},",
    ]
    parts += [
        '{"arguments": {"city": "Rome"}, "name": "f"}',
        '[f(city="Rome")]',
        '[f(city="Oslo"), g()]',
        "\n",
        " ",
        "{",
    ]
    parts += [f'{{"type": "function", "function": {BAD}}}', f'[{{"type": "function", "function": {BAD}}}]', "; ", "}"]
    parts += [
        f"[{GOOD}, {BAD}]",
        f"[[{BAD}]]",
        '{"name": "h", "arguments": {}, "name": "f"}',
        "<think>",
        "</think>",
        "ä",
    ]
    parts += ["```json\n", "```", "f[ARGS]", 'f{"city": "Rome"}', '{"name": "f", "parameters": "{}"}', *markers * 2]
    text = rng.choice(parts)
    if rng.random() < 0.2:
        text = text[: rng.randrange(len(text) + 1)]
    if rng.random() < 0.03:
        return [HIDDEN, rng.randrange(256), MARK]
    return encode(text) if rng.random() < 0.5 else list(text.encode())


def _calls(plan: AnswerPlan, text: str, *, is_whole: bool) -> list[tuple[str, str]]:
    """The whole calls that a reader finds; where the text ends inside of one, that is left out."""
    reader = plan.reader()
    parts: list[Part] = [*reader.feed(text), *(reader.end(is_cut=False) if is_whole else [])]
    assert all(not isinstance(part, Content) or part.text for part in parts)
    names = {part.index: part.name for part in parts if isinstance(part, CallStart)}
    return [
        (name, "".join(part.text for part in parts if isinstance(part, CallArguments) and part.index == index))
        for index, name in names.items()
    ]
