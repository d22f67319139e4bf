"""Answers with a form, by models that may think first or call tools instead: which texts pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from engine.constraints.compiler import ConstraintCompiler
from engine.constraints.constraint import ConstraintBroken
from engine.request import ConstraintKind, ConstraintSpec
from extensions.parsing.forced import thought_grammar
from gateway.schemas.base import validate
from gateway.schemas.tools import Tool
from gateway.translate.framing import framed
from tests.engine.constraints.vocabulary import encode, vocabulary

SCHEMA = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"], "additionalProperties": False}
FORMS = [
    (ConstraintSpec(kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(SCHEMA)), '{"q": 1}', '{"q":  1}'),
    (ConstraintSpec(kind=ConstraintKind.JSON_OBJECT), '{"x": [1]}', "[1]"),
    (ConstraintSpec(kind=ConstraintKind.REGEX, source="a/b+"), "a/bb", "a/"),
    (ConstraintSpec(kind=ConstraintKind.CHOICE, source='["left", "right"]'), "right", "wrong"),
    (ConstraintSpec(kind=ConstraintKind.LARK, source='start: "x" y\ny: "y"'), "xy", "x"),
]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    compiler = ConstraintCompiler(vocabulary)
    yield compiler
    compiler.close()


@pytest.fixture
def tool() -> Tool:
    parameters = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    return validate(Tool, {"type": "function", "function": {"name": "f", "parameters": parameters}})


def passes(compiler: ConstraintCompiler, spec: ConstraintSpec, text: str) -> bool:
    constraint = compiler.compile(spec).result(60).fork()
    try:
        constraint.advance(encode(text))
        if not constraint.is_complete:
            constraint.advance((256,))
    except ConstraintBroken:
        return False
    return True


@pytest.mark.parametrize(("spec", "good", "bad"), FORMS)
def test_the_form_begins_after_the_thinking(
    compiler: ConstraintCompiler, spec: ConstraintSpec, good: str, bad: str
) -> None:
    thought = thought_grammar("<think>", "</think>", is_open=False)
    wanted = framed(spec, thought=thought)
    for text in (good, f"<think>{bad} so\n</think>\n\n{good}"):
        assert passes(compiler, wanted, text), text
    for text in (bad, f"<think>{good}", f"<think>x</think>{bad}", f"{good}<think>x</think>"):
        assert not passes(compiler, wanted, text), text
    is_open = framed(spec, thought=thought_grammar("<think>", "</think>", is_open=True))
    assert passes(compiler, is_open, f"so</think>{good}")
    assert not passes(compiler, is_open, good)


@pytest.mark.parametrize(("spec", "good", "bad"), FORMS)
def test_an_answer_may_be_calls_instead(
    compiler: ConstraintCompiler, spec: ConstraintSpec, good: str, bad: str, tool: Tool
) -> None:
    wanted = framed(spec, tools=[tool])
    for text in (good, CALL, f"{CALL}\n{CALL}"):
        assert passes(compiler, wanted, text), text
    for text in (bad, CALL.replace('"b"', "1"), CALL.replace('"f"', '"g"'), CALL + good):
        assert not passes(compiler, wanted, text), text
    single = framed(spec, tools=[tool], is_single=True)
    assert passes(compiler, single, CALL)
    assert not passes(compiler, single, f"{CALL}\n{CALL}")


def test_thinking_and_calls_go_together(compiler: ConstraintCompiler, tool: Tool) -> None:
    thought = thought_grammar("<think>", "</think>", is_open=False)
    spec, good, _ = FORMS[0]
    wanted: Any = framed(spec, thought=thought, tools=[tool])
    assert passes(compiler, wanted, f"<think>x</think>{CALL}")
    assert passes(compiler, wanted, f"<think>x</think>{good}")


def test_a_plain_answer_is_left_as_it_is() -> None:
    assert framed(FORMS[0][0]) is FORMS[0][0]
