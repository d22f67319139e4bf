"""Calls as families of models write them, and texts that only look like calls. Every text is read in many splits."""

from __future__ import annotations

import json

import pytest

from extensions.parsing.formats import FORMATS, FormatName
from tests.extensions.parsing.reading import Read, plan, read

OSLO = '{"city": "Oslo", "days": 42, "deep": {"a": [1, null, true, "}\\""]}}'
CALL = ("get_weather", OSLO)
TIME = ("get_time", "{}")
W = f'{{"name": "get_weather", "arguments": {OSLO}}}'
P = f'{{"name": "get_weather", "parameters": {OSLO}}}'
T = '{"name": "get_time", "arguments": {}}'

WRITTEN: list[tuple[FormatName, str, tuple[tuple[str, str], ...]]] = [
    ("hermes", f'<tool_call>\n{W}\n</tool_call>', (CALL,)),
    (
        "hermes",
        f'<tool_call>{{"arguments": {OSLO}, "name": "get_weather"}}</tool_call>\n'
        '<tool_call>{"name": "get_time"}</tool_call>',
        (CALL, TIME),
    ),
    ("hermes", f'<tool_call>\n{W}', (CALL,)),
    ("hermes", f'<tool_call>\n{W}}}\n</tool_call>', (CALL,)),
    ("hermes", f'  {W}\n</tool_call>', (CALL,)),
    ("smollm2", f'<tool_call>[{W}]</tool_call>', (CALL,)),
    (
        "smollm2",
        f'<tool_call>[\n{W},\n{T}\n]</tool_call>',
        (CALL, TIME),
    ),
    ("llama3_json", f'{P}', (CALL,)),
    ("llama3_json", f'<|python_tag|>{P}', (CALL,)),
    (
        "llama3_json",
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {OSLO}}}; '
        '{"name": "get_time", "parameters": {}}',
        (CALL, TIME),
    ),
    (
        "llama_pythonic",
        "[get_weather(city='O\\'slo', days=3, wet=True, x=None, y=[1, {'a': -2.5}]), get_time()]",
        (
            ("get_weather", '{"city": "O\'slo", "days": 3, "wet": true, "x": null, "y": [1, {"a": -2.5}]}'),
            TIME,
        ),
    ),
    ("llama_pythonic", "<|python_start|>[get_weather(x=1)]<|python_end|>", (("get_weather", '{"x": 1}'),)),
    ("llama_pythonic", '[get_weather(wet=false)]', (("get_weather", '{"wet": false}'),)),
    ("mistral", f'[TOOL_CALLS] [{W}]', (CALL,)),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {OSLO}, "id": "abcdefghi"}}, {T}]',
        (CALL, TIME),
    ),
    ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{OSLO}", (CALL,)),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]abc123[ARGS]{OSLO}[TOOL_CALLS]get_time{{}}", (CALL, TIME)),
]  # fmt: skip

BARE: list[tuple[str, tuple[tuple[str, str], ...]]] = [
    (f'{W}', (CALL,)),
    (f'```json\n{W}\n```', (CALL,)),
    (f'```\n{W}\n```\n', (CALL,)),
    (f'```json\n{W}\n{T}\n```', (CALL, TIME)),
    (f'{P}\n{T}', (CALL, TIME)),
    (f'[{W}, {{"name": "get_time", "arguments": null}}]', (CALL, TIME)),
    (f'{{"type": "function", "function": {W}}}', (CALL,)),
    (f'{{"name": "get_weather", "arguments": {json.dumps(OSLO)}}}', (CALL,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "calls"), WRITTEN)
def test_a_family_s_own_calls_are_read_in_every_split(
    name: FormatName, text: str, calls: tuple[tuple[str, str], ...]
) -> None:
    assert read(plan(name), text) == Read("", calls)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("text", "calls"), BARE)
def test_bare_and_fenced_json_is_a_call_in_every_format(
    name: FormatName, text: str, calls: tuple[tuple[str, str], ...]
) -> None:
    assert read(plan(name), text) == Read("", calls)


@pytest.mark.parametrize(("name", "text", "calls"), [one for one in WRITTEN if "_call>" in one[1]])
def test_text_around_marked_calls_is_content_without_the_space_between(
    name: FormatName, text: str, calls: tuple[tuple[str, str], ...]
) -> None:
    if not text.endswith("</tool_call>"):
        text += "</tool_call>"
    assert read(plan(name), f"Let me look.\n\n{text}\n\nDone.") == Read("Let me look.Done.", calls)


PLAIN = [
    "Hello there.\n\n  Bye.  \n",
    "a < b and <b>bold</b> <tool <tool_cal",
    "{\n  not json\n}\n[1, 2]\n[link](url)\n```python\nprint({})\n```\n",
    '{"city": "Oslo"}',
    '{"name": "Ann", "age": 7}',
    '{"name": "unknown_tool", "arguments": {}}',
    '{"name": "get_weather"}',
    '{"name": "get_weather", "arguments": [1]}',
    '{"name": "get_weather", "arguments": 5}',
    'See {"name": "get_weather", "arguments": {}} inside a line.',
    '```json\n{"name": "Ann"}\n```',
    '{"name": "get_weather", "arguments": {"a": NaN}}',
    '{"name": "get_weather", "arguments": {"city": "Os',
    "```json\n",
    "[get_weather]",
    "[get_weather(x)]",
    "[get_weather(**x)]",
    "[unknown(a=1)]",
    "[get_weather(a=open('/etc/passwd'))]",
    "<tool_call></tool_call>",
    '<tool_call>{"name": "get_weather", "arguments": {broken}}</tool_call>',
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}\n</tool_call>',
    '<tool_call>{"name": "unknown_tool", "arguments": {}}</tool_call>',
    '<tool_call>call the tool</tool_call> and more',
    '<tool_call>{"name": "get_weather", "arguments": {"city": ',
    "[TOOL_CALLS] no",
    '[TOOL_CALLS] [{"name": "unknown_tool", "arguments": {}}]',
    "[TOOL_CALLS]unknown_tool[ARGS]{}",
    '<|python_tag|>print("hi")',
    '<|python_tag|>{"name": "get_weather", "parameters": {"a": }}',
    "[" * 300,
    "{" * 300 + "}" * 300,
    "\n{".join(['{"name":1'] * 90),
    "[get_weather(a=" + "(" * 100 + ")" * 100 + ")]",
    "[get_weather(a=" + "-" * 50_000 + "1)]",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_call_of_a_given_tool_is_the_text_unchanged(name: FormatName, text: str) -> None:
    assert read(plan(name), text) == Read(text)


def test_a_broken_call_is_text_and_a_good_one_beside_it_a_call() -> None:
    broken = '<tool_call>{"name": "get_weather", oops}</tool_call>'
    good = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    assert read(plan("hermes"), broken + "\n" + good) == Read(broken, (TIME,))
    assert read(plan("hermes"), good + "\n" + broken) == Read(broken, (TIME,))
    unclosed = '<tool_call>{"name": "get_weather", oops}\n'
    assert read(plan("hermes"), unclosed + good) == Read(unclosed.rstrip(), (TIME,))


def test_json_that_is_no_call_does_not_hide_a_call_after_it() -> None:
    text = '{"city": "Oslo"}\n{"name": "get_time", "arguments": {}}'
    assert read(plan(), text) == Read('{"city": "Oslo"}', (TIME,))


def test_line_breaks_inside_strings_are_taken_and_written_as_json() -> None:
    text = '{"name": "get_weather", "arguments": {"city": "a\nb\tc"}}'
    assert read(plan(), text) == Read("", (("get_weather", '{"city": "a\\nb\\tc"}'),))


def test_a_closing_marker_inside_a_string_closes_nothing() -> None:
    arguments = '{"city": "</tool_call>"}'
    text = f'<tool_call>{{"name": "get_weather", "arguments": {arguments}}}</tool_call>'
    assert read(plan("hermes"), text) == Read("", (("get_weather", arguments),))


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Os', (("get_weather", '{"city": "Os'),)),
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"a": 1}', (("get_weather", '{"a": 1}'),)),
        ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"a": ', (("get_weather", '{"a": '),)),
        (
            "smollm2",
            '<tool_call>[{"name": "get_time", "arguments": {}}, {"name": "get_weather", "arguments": {"a"',
            (TIME, ("get_weather", '{"a"')),
        ),
    ],
)
def test_a_call_cut_inside_its_arguments_is_given_as_far_as_it_goes(
    name: FormatName, text: str, calls: tuple[tuple[str, str], ...]
) -> None:
    assert read(plan(name), text, is_cut=True) == Read("", calls)


def test_a_call_cut_before_its_arguments_is_text() -> None:
    text = '<tool_call>{"name": "get_wea'
    assert read(plan("hermes"), text, is_cut=True) == Read(text)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call><tool_call>{"name": "get_time"}</tool_call>',
        '{"name": "get_weather", "arguments": {}}\n{"name": "get_time", "arguments": {}}',
        '[{"name": "get_weather", "arguments": {}}, {"name": "get_time", "arguments": {}}]',
    ],
)
def test_the_first_call_ends_an_answer_that_may_have_but_one(text: str) -> None:
    single = plan("hermes", is_single=True)
    watch = single.first_call_watch()
    end = watch(text)
    assert end is not None
    assert text[:end].endswith(("{}}", "}]"))
    assert read(single, text[:end]).calls == (("get_weather", "{}"),)


@pytest.mark.parametrize("name", FORMATS)
def test_what_a_format_writes_it_reads(name: FormatName) -> None:
    calls = [{"name": "get_weather", "arguments": {"city": "Oslo"}}, {"name": "get_time", "arguments": {}}]
    found = read(plan(name), FORMATS[name].write_calls(calls))
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == [
        ("get_weather", {"city": "Oslo"}),
        ("get_time", {}),
    ]
    assert found.content == ""
