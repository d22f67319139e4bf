"""What is no device program is refused with the line and column of the reason."""

from __future__ import annotations

import pytest

from engine.programs.binding import bind
from engine.programs.errors import ProgramInvalid, ProgramMisused
from engine.programs.lowering import lower
from engine.programs.syntax import parse
from engine.programs.types import BOOL, FLOAT, HISTORY, INT, VOCAB, Kind, Type

V = 8

REFUSED: dict[str, tuple[str, int, int, str]] = {
    "nothing": ("", 1, 1, "function named `sample`"),
    "no Python": ("def sample(logits:\n", 1, 11, "'(' was never closed"),
    "another name": ("x = 3\n", 1, 1, "first values"),
    "another function": ("def choose(logits):\n    return argmax(logits)\n", 1, 1, "`sample`"),
    "two functions": ("def sample(logits):\n    return 1\ndef other():\n    return 2\n", 3, 1, "one function"),
    "an import": ("import os\n", 1, 1, "one function"),
    "no return": ("def sample(logits):\n    x = 1\n", 2, 5, "ends with a return"),
    "an early return": ("def sample(logits):\n    return 1\n    return 2\n", 2, 5, "last sentence"),
    "a float token": ("def sample(logits):\n    return max(logits)\n", 2, 12, "a token, i64; this is f32"),
    "a vector token": ("def sample(logits):\n    return rank(logits)\n", 2, 12, "i64[V]"),
    "a branch": ("def sample(logits):\n    if 1:\n        pass\n    return 1\n", 2, 5, "where("),
    "a while": ("def sample(logits):\n    while True:\n        pass\n    return 1\n", 2, 5, "where("),
    "an unknown name": ("def sample(logits):\n    return foo\n", 2, 12, "no name `foo`"),
    "an input not asked for": ("def sample(logits):\n    return prev\n", 2, 12, "must be a parameter"),
    "an unknown function": ("def sample(logits):\n    return eval(logits)\n", 2, 12, "no function `eval`"),
    "an attribute": ("def sample(logits):\n    return logits.data\n", 2, 12, "no attributes"),
    "a method": ("def sample(logits):\n    return logits.argmax()\n", 2, 12, "can be called"),
    "a keyword": ("def sample(logits):\n    return argmax(x=logits)\n", 2, 12, "argmax(x)"),
    "too many operands": ("def sample(logits):\n    return argmax(logits, 1)\n", 2, 12, "argmax(x)"),
    "axes that differ": (
        "def sample(logits):\n    v, i = topk(logits, 3)\n    return argmax(logits + v)\n",
        3,
        19,
        "cannot combine",
    ),
    "arithmetic on a key": ("def sample(logits, key):\n    return key + 1\n", 2, 12, "random key"),
    "a draw without a key": ("def sample(logits):\n    return gumbel_argmax(logits, 1)\n", 2, 12, "with a key"),
    "an index that is no number of a place": (
        "def sample(logits):\n    return int(gather(logits, 0.5))\n",
        2,
        16,
        "index must be i64",
    ),
    "a condition that is no bool": (
        "def sample(logits):\n    return argmax(where(logits, 1, 0))\n",
        2,
        19,
        "condition must be bool",
    ),
    "not of a number": ("def sample(logits):\n    return argmax(~logits)\n", 2, 19, "bool"),
    "and of numbers": ("def sample(logits):\n    return int(1 and 2)\n", 2, 16, "joins bool"),
    "the history in order": ("def sample(history):\n    return argmax(history)\n", 2, 12, "length changes"),
    "a place counted from the front": ("def sample(history):\n    return history[0]\n", 2, 12, "from its end"),
    "indexing a vector": ("def sample(logits):\n    return int(logits[3])\n", 2, 16, "gather"),
    "a range that is not fixed": (
        "def sample(logits, prev):\n    for i in range(prev):\n        pass\n    return 1\n",
        2,
        20,
        "fixed in the source",
    ),
    "a loop over data": ("def sample(logits):\n    for x in logits:\n        pass\n    return 1\n", 2, 14, "range(n)"),
    "an endless loop": (
        "def sample(logits):\n    for i in range(1000000000000):\n        pass\n    return 1\n",
        2,
        5,
        "rounds",
    ),
    "loops in loops": (
        "def sample(logits):\n    for i in range(99):\n        for j in range(99):\n            pass\n    return 1\n",
        3,
        9,
        "rounds",
    ),
    "too many values": (
        "def sample(logits):\n    x = 0\n    for i in range(2000):\n        x = x * 3 + i\n    return x\n",
        4,
        13,
        "values",
    ),
    "a state without a beginning": ("def sample(logits):\n    state.x = 1.0\n    return 1\n", 2, 5, "no first value"),
    "a state of another type": (
        "state.x = 0\ndef sample(logits):\n    state.x = 1.5\n    return 1\n",
        3,
        5,
        "state.x is i64",
    ),
    "a state of another shape": (
        "state.x = 0.0\ndef sample(logits):\n    state.x = logits\n    return 1\n",
        3,
        5,
        "state.x is f32",
    ),
    "a state given twice": ("state.x = 0\nstate.x = 1\ndef sample(logits):\n    return 1\n", 2, 1, "already"),
    "a probe that is a key": ("def sample(key):\n    probe.k = key\n    return 1\n", 2, 5, "probe cannot be"),
    "topk as one value": ("def sample(logits):\n    x = topk(logits, 3)\n    return 1\n", 2, 9, "two values"),
    "shift of no history": (
        "def sample(logits):\n    return argmax(shift(logits, 1))\n",
        2,
        19,
        "of the history, not f32[V]",
    ),
    "shift into the future": (
        "def sample(logits, history):\n    x = shift(history, -1)\n    return 1\n",
        2,
        9,
        "between 0 and",
    ),
    "topk of nothing": ("def sample(logits):\n    v, i = topk(logits, 0)\n    return 1\n", 2, 12, "between 1 and"),
    "assigning a name that is there": (
        "def sample(logits):\n    vocab = 1\n    return 1\n",
        2,
        5,
        "cannot be assigned",
    ),
    "star arguments": ("def sample(*logits):\n    return 1\n", 1, 1, "plain names"),
    "a default of an input": ("def sample(prev=3):\n    return 1\n", 1, 17, "comes from the step"),
    "a default that is no number": ("def sample(x='a'):\n    return 1\n", 1, 14, "a default is a number"),
    "a decorator": ("@cache\ndef sample(logits):\n    return 1\n", 1, 2, "decorators"),
    "a number too large": (f"def sample(logits):\n    return {2**63}\n", 2, 12, "64 bits"),
    "a lambda": ("def sample(logits):\n    f = lambda: 1\n    return 1\n", 2, 9, "numbers, names"),
    "a text": ("def sample(logits):\n    x = 'a'\n    return 1\n", 2, 9, "numbers, names"),
    "a lane not asked for": ("def sample(logits):\n    return argmax(lanes[0].logits)\n", 2, 19, "`lanes`"),
    "a lane too far": ("def sample(lanes):\n    return argmax(lanes[99].logits)\n", 2, 19, "numbered"),
    "matrix product": ("def sample(logits):\n    return argmax(logits @ logits)\n", 2, 19, "operator"),
    "deep nesting": (f"def sample(logits):\n    return {'-' * 200}1\n", 2, 70, "deep"),
    "a long source": ("#" * 20_000, 1, 1, "bytes"),
}


@pytest.mark.parametrize(("source", "line", "column", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_it_says_where_and_why(source: str, line: int, column: int, reason: str) -> None:
    with pytest.raises(ProgramInvalid) as caught:
        bind(source, {}, V)
    assert reason in caught.value.message
    assert caught.value.line == line
    if reason != "deep":
        assert caught.value.column == column
    assert str(caught.value).startswith(f"line {line}, column ")


def test_a_source_with_a_null_byte_is_refused_too() -> None:
    with pytest.raises(ProgramInvalid):
        parse("def sample(logits):\n    return 1\0\n")


TYPED: dict[str, tuple[str, Type]] = {
    "3": ("3", INT),
    "3.0": ("3.0", FLOAT),
    "True": ("True", BOOL),
    "1 + 2": ("1 + 2", INT),
    "True + True": ("True + True", INT),
    "1 + 2.0": ("1 + 2.0", FLOAT),
    "1 / 2": ("1 / 2", FLOAT),
    "7 // 2": ("7 // 2", INT),
    "logits > 0": ("logits > 0", Type(Kind.BOOL, VOCAB)),
    "-logits": ("-logits", Type(Kind.FLOAT, VOCAB)),
    "0 < prev < 3": ("0 < prev < 3", BOOL),
    "sum(logits > 0)": ("sum(logits > 0)", INT),
    "sum(logits)": ("sum(logits)", FLOAT),
    "max(prev, 3)": ("max(prev, 3)", INT),
    "max(counts)": ("max(counts)", INT),
    "rank(logits)": ("rank(logits)", Type(Kind.INT, VOCAB)),
    "one_hot(prev)": ("one_hot(prev)", Type(Kind.BOOL, VOCAB)),
    "gather(logits, history)": ("sum(gather(logits, history))", FLOAT),
    "scatter(counts, history, 1.5)": ("scatter(counts, history, 1.5)", Type(Kind.FLOAT, VOCAB)),
    "softmax(counts)": ("softmax(counts)", Type(Kind.FLOAT, VOCAB)),
    "hash_uniform(prev, vocab)": ("hash_uniform(prev, vocab)", Type(Kind.FLOAT, VOCAB)),
    "uniform(key)": ("uniform(key)", FLOAT),
    "history[-2]": ("history[-2]", INT),
    "vocab_size": ("vocab_size", INT),
    "lanes[1].logits": ("lanes[1].logits", Type(Kind.FLOAT, VOCAB)),
}


@pytest.mark.parametrize(("expression", "kind"), TYPED.values(), ids=TYPED.keys())
def test_an_expression_has_its_type(expression: str, kind: Type) -> None:
    source = f"def sample(logits, lanes, key, prev, history, counts):\n    probe.x = {expression}\n    return 1\n"
    graph = lower(source, ())
    assert graph.nodes[graph.probes["x"]].type == kind


def test_values_of_the_history_go_together() -> None:
    graph = lower("def sample(history):\n    return sum(history * 2)\n", ())
    assert Type(Kind.INT, HISTORY) in {node.type for node in graph.nodes}


def test_the_same_value_is_computed_once() -> None:
    graph = lower("def sample(logits):\n    return argmax(softmax(logits)) + argmax(softmax(logits))\n", ())
    assert [node.op for node in graph.nodes].count("softmax") == 1


def test_each_call_that_draws_draws_anew() -> None:
    graph = lower(
        "def sample(logits, key):\n    probe.a = uniform(key)\n    probe.b = uniform(key)\n    return 1\n", ()
    )
    assert graph.probes["a"] != graph.probes["b"]


GOOD = "def sample(logits, key, bias, scale=2.0):\n    return gumbel_argmax(logits * scale + bias, key)\n"

MISUSED: dict[str, tuple[dict[str, object], str]] = {
    "missing": ({}, "bias"),
    "unknown": ({"bias": 1, "bios": 2}, "bios"),
    "no number": ({"bias": "a"}, "bias"),
    "nothing": ({"bias": None}, "bias"),
    "not finite": ({"bias": float("nan")}, "bias"),
    "infinite": ({"bias": float("inf")}, "bias"),
    "a list too short": ({"bias": [1.0] * 3}, "bias"),
    "a list with a text": ({"bias": [1.0] * 7 + ["a"]}, "bias"),
    "a list with a number too large": ({"bias": [1e300] * 8}, "bias"),
    "a number too large": ({"bias": 2**70}, "bias"),
}


@pytest.mark.parametrize(("values", "name"), MISUSED.values(), ids=MISUSED.keys())
def test_a_parameter_that_does_not_fit_is_named(values: dict[str, object], name: str) -> None:
    with pytest.raises(ProgramMisused) as caught:
        bind(GOOD, values, V)
    assert caught.value.name == name
    assert name in str(caught.value)


def test_topk_of_more_than_the_vocabulary_is_refused() -> None:
    with pytest.raises(ProgramMisused, match="vocabulary of 8"):
        bind("def sample(logits):\n    v, i = topk(logits, 9)\n    return argmax(v)\n", {}, V)


def test_programs_that_differ_in_values_alone_are_the_same_graph() -> None:
    one, other = bind(GOOD, {"bias": 1.0}, V), bind(GOOD, {"bias": 2.5, "scale": 1.0}, V)
    assert one.graph is other.graph
    assert (one.digest, one.types) == (other.digest, other.types)
    assert bind(GOOD, {"bias": [0.5] * V}, V).types != one.types
