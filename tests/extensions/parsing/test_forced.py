"""The text of forced calls is streamed as it comes, and its grammar is one that llguidance takes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from extensions.parsing.forced import call_grammar, thought_grammar
from extensions.parsing.parts import CallArguments
from tests.extensions.parsing.reading import NAMES, Read, parts_of, plan, read

OSLO = '{"city": "O]}\\"slo", "days": 42}'
ONE = f'{{"name": "get_weather", "arguments": {OSLO}}}'
TIME = '{"name": "get_time", "arguments": {}}'
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (ONE, (("get_weather", OSLO),)),
        (f"[{ONE}]", (("get_weather", OSLO),)),
        (f"[{ONE}, {TIME}]", (("get_weather", OSLO), ("get_time", "{}"))),
        (f"<think>Which?</think>\n\n{ONE}", (("get_weather", OSLO),)),
    ],
)
def test_forced_calls_are_read_in_every_split(text: str, calls: tuple[tuple[str, str], ...]) -> None:
    found = read(plan(is_forced=True), text)
    assert (found.content, found.calls) == ("", calls)


@pytest.mark.parametrize("size", range(len(ONE)))
def test_a_forced_call_that_is_cut_shows_what_there_is_of_its_arguments_and_nothing_else(size: int) -> None:
    found = read(plan(is_forced=True), ONE[:size], is_cut=True)
    assert found.content == ""
    assert all(OSLO.startswith(arguments) for _, arguments in found.calls)


def test_arguments_are_given_as_they_come() -> None:
    parts = parts_of(plan(is_forced=True), list(ONE))
    assert [part.text for part in parts if isinstance(part, CallArguments)] == list(OSLO)


def accepts(grammar: str, text: str) -> bool:
    """Whether llguidance takes exactly this text."""
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(grammar))
    assert not matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


def test_the_grammar_takes_calls_of_the_given_tools_with_arguments_of_their_schemas() -> None:
    grammar = call_grammar({"get_weather": WEATHER, "get_time": None}, is_parallel=False)
    assert accepts(grammar, '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 42}}')
    assert accepts(grammar, TIME)
    assert not accepts(grammar, '{"name": "get_weather", "arguments": {"city": "Oslo"}}')
    assert not accepts(grammar, '{"name": "nope", "arguments": {}}')
    assert not accepts(grammar, f"[{TIME}]")


def test_the_grammar_takes_several_calls_where_they_are_allowed() -> None:
    grammar = call_grammar({"get_time": None}, is_parallel=True)
    assert accepts(grammar, f"[{TIME}]")
    assert accepts(grammar, f"[{TIME}, {TIME}]")
    assert not accepts(grammar, "[]")


def test_the_grammar_takes_one_call_or_several_where_both_will_do() -> None:
    grammar = call_grammar({"get_time": None}, is_parallel=True, may_be_single=True)
    assert accepts(grammar, TIME)
    assert accepts(grammar, f"[{TIME}, {TIME}]")
    assert not accepts(grammar, "[]")
    assert not accepts(grammar, f"{TIME}{TIME}")


def walked(grammar: str, draw: random.Random) -> str:
    """A text that the grammar allows, drawn byte by byte."""
    tokenizer = LLTokenizer("byte")
    matcher, data = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar)), bytearray()
    while not matcher.is_stopped():
        allowed = [at for at, bias in enumerate(matcher.compute_logit_bias()) if bias]
        token = draw.choice(allowed)
        assert matcher.consume_token(token)
        data += bytes([token]) if token < 256 else b""
    return data.decode()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_grammar_allows_is_read_back_as_what_it_says(seed: int) -> None:
    schema = {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["}", '"', "\\", "a, b", None, 1.5]},
            "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
            "in": {"type": "object", "properties": {"n": {"enum": [1, -2]}}, "additionalProperties": False},
        },
        "required": ["text", "kind", "list", "in"],
        "additionalProperties": False,
    }
    grammar = call_grammar({"get_weather": schema, "get_time": None}, is_parallel=True, may_be_single=True)
    text = walked(grammar, random.Random(seed))
    said = json.loads(text)
    wanted = said if isinstance(said, list) else [said]
    found = read(plan(is_forced=True), text)
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == [
        (one["name"], one["arguments"]) for one in wanted
    ]
    assert found.content == ""


@pytest.mark.parametrize("is_open", [True, False])
def test_the_grammar_lets_the_answer_think_first(is_open: bool) -> None:
    thought = thought_grammar("<think>", "</think>", is_open=is_open)
    grammar = call_grammar({"get_time": None}, is_parallel=False, thought=thought)
    begun = "" if is_open else "<think>"
    assert accepts(grammar, f"{begun}a <b> {{\n</think>\n\n{TIME}")
    assert accepts(grammar, TIME) is not is_open


def test_a_reference_inside_a_tool_s_schema_stays_inside_it() -> None:
    schema = {
        "type": "object",
        "$defs": {"n": {"type": "integer"}},
        "properties": {"x": {"$ref": "#/$defs/n"}},
        "required": ["x"],
        "additionalProperties": False,
    }
    grammar = call_grammar(dict.fromkeys(NAMES, schema), is_parallel=True)
    assert accepts(grammar, json.dumps([{"name": "set_light", "arguments": {"x": 3}}]))
    assert not accepts(grammar, json.dumps([{"name": "set_light", "arguments": {"x": "3"}}]))


def test_text_that_no_grammar_forced_is_not_lost() -> None:
    text = "I would rather talk. " * 20
    assert read(plan(is_forced=True), text) == Read(text)
