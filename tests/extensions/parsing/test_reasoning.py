"""Thinking is told from the answer, in every split of the text."""

from __future__ import annotations

import pytest

from engine.text.chat_template import ChatTemplate
from extensions.parsing.detection import detect_thinking, detect_tool_format
from extensions.parsing.reasoning import MARKERS, Thinking
from tests.extensions.parsing.reading import Read, plan, read

OPEN = Thinking(start="<think>", end="</think>", is_open=True)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("<think>\nPlan: one\n</think>\n\nPlan done", Read("Plan done", thought="Plan: one")),
        ("\n<think>a\n\nb</think>c</think>", Read("c</think>", thought="a\n\nb")),
        ("<think></think>Hi", Read("Hi")),
        ("<think>\n\n</think>\n\nHi", Read("Hi")),
        ("<think>never ends", Read("", thought="never ends")),
        ("<think>ends in a marker's beginning </thi", Read("", thought="ends in a marker's beginning </thi")),
        ("Hi <think>no</think>", Read("Hi <think>no</think>")),
        ("<thin", Read("<thin")),
        ("  Hi", Read("  Hi")),
        ("", Read("")),
    ],
)
def test_a_text_that_begins_with_thinking_is_two(text: str, seen: Read) -> None:
    assert read(plan(), text) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Plan\n</think>\n\nDone", Read("Done", thought="Plan")),
        ("Plan", Read("", thought="Plan")),
        ("</think>Done", Read("Done")),
    ],
)
def test_thinking_that_the_prompt_began_goes_on(text: str, seen: Read) -> None:
    assert read(plan(thinking=OPEN), text) == seen


def test_calls_come_after_the_thinking_and_never_out_of_it() -> None:
    call = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    found = read(plan("hermes"), f"<think>I write {call}?</think>\n\n{call}")
    assert found == Read("", (("get_time", "{}"),), thought=f"I write {call}?")


@pytest.mark.parametrize("pair", MARKERS.values())
def test_markers_are_known_by_the_template(pair: tuple[str, str]) -> None:
    thinking = detect_thinking(ChatTemplate("{{ messages }}{# " + pair[0] + pair[1] + " #}"))
    assert (thinking.start, thinking.end) == pair


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n", False),
    ],
)
def test_whether_the_prompt_began_the_thinking_is_seen_at_its_end(prompt: str, is_open: bool) -> None:
    assert detect_thinking(ChatTemplate("x")).at_end_of(prompt).is_open is is_open


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("<tool_call>{{ tools }}", "hermes"),
        ("[AVAILABLE_TOOLS][TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json"),
        ("[func_name1(params_name1=params_value1)]", "llama_pythonic"),
        ("You are a helpful AI assistant named SmolLM, trained by", "smollm2"),
        ("anything else", "generic"),
    ],
)
def test_a_format_is_known_by_the_template(template: str, name: str) -> None:
    source = "{# " + template.replace("{", "").replace("}", "") + " #}"
    if "dictionary" in template:
        source = "{# " + template + " #}"
    assert detect_tool_format(ChatTemplate(source)).name == name
