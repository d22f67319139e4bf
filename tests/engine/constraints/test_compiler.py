"""Which constraints are refused, how, and what refusing costs others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from engine.constraints.checker import GrammarChecker
from engine.constraints.compiler import ConstraintCompiler
from engine.constraints.grammar import to_grammar
from engine.constraints.limits import MAX_CHOICES, MAX_REGEX_BYTES, MAX_SOURCE_BYTES
from engine.errors import EngineError, InvalidRequest, ResourceExhausted
from engine.request import ConstraintKind, ConstraintSpec
from tests.engine.constraints.vocabulary import vocabulary


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintCompiler]:
    compiler = ConstraintCompiler(vocabulary, make_checker=lambda: GrammarChecker(cpu_s=3.0))
    yield compiler
    compiler.close()


def of_schema(schema: Any, **options: Any) -> ConstraintSpec:
    return ConstraintSpec(
        kind=ConstraintKind.JSON_SCHEMA, source=json.dumps(schema), param="response_format", **options
    )


def of_kind(kind: str, source: str) -> ConstraintSpec:
    return ConstraintSpec(kind=ConstraintKind(kind), source=source, param="response_format")


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def chain(length: int) -> dict[str, Any]:
    """References to references."""
    links = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(length)}
    return {"$defs": {**links, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def refusal(compiler: ConstraintCompiler, spec: ConstraintSpec) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(spec).result(60)
    return caught.value


BAD = {
    "64 levels": of_schema(nested(64)),
    "3000 levels": of_kind("json_schema", '{"properties":{"a":' * 3000 + "{}" + "}}" * 3000),
    "not JSON": of_kind("json_schema", "{"),
    "a list": of_schema([]),
    "a string for a schema": of_schema({"type": "object", "properties": {"a": "bar"}}),
    "an unclosed pattern": of_schema({"type": "string", "pattern": "^(unclosed"}),
    "an unknown type": of_schema({"type": "strin"}),
    "a reference to nothing": of_schema({"$ref": "#/nope"}),
    "a reference to elsewhere": of_schema({"$ref": "http://localhost/a"}),
    "nothing can satisfy it": of_schema(False),
    "minimum above maximum": of_schema({"type": "integer", "minimum": 5, "maximum": 3}),
    "a regex that is none": of_kind("regex", "(unclosed"),
    "a look-ahead": of_kind("regex", "(?=a)b"),
    "a back reference": of_kind("regex", r"(a)\1"),
    "an empty regex": of_kind("regex", ""),
    "a long regex": of_kind("regex", "a" * (MAX_REGEX_BYTES + 1)),
    "no choice": of_kind("choice", "[]"),
    "an empty choice": of_kind("choice", '["a", ""]'),
    "a number to choose": of_kind("choice", "[1]"),
    "many choices": of_kind("choice", json.dumps([str(number) for number in range(MAX_CHOICES + 1)])),
    "a grammar that is none": of_kind("lark", "start: ("),
    "a grammar without start": of_kind("lark", 'begin: "a"'),
    "a long grammar": of_kind("lark", "start: " + '"a" ' * MAX_SOURCE_BYTES),
    "a deep grammar": of_kind("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
}


@pytest.mark.parametrize("spec", BAD.values(), ids=BAD.keys())
def test_what_cannot_be_enforced_is_refused_and_the_field_named(
    compiler: ConstraintCompiler, spec: ConstraintSpec
) -> None:
    error = refusal(compiler, spec)
    assert error.param == "response_format"
    assert 0 < len(error.message) < 1000


@pytest.mark.parametrize("keyword", ["not", "if", "uniqueItems", "contains", "propertyNames", "dependentRequired"])
def test_a_keyword_that_cannot_be_enforced_is_named_when_strict_and_left_out_else(
    compiler: ConstraintCompiler, keyword: str
) -> None:
    schema: dict[str, Any] = {"type": ["object", "array"], keyword: True if keyword == "uniqueItems" else {}}
    assert keyword in refusal(compiler, of_schema(schema, strict=True)).message
    compiler.compile(of_schema(schema)).result(60)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (of_kind("regex", r"[^\s\S]"), "no text that it allows"),
        (of_kind("lark", "root ::= root"), "no text that it allows"),
        (of_schema({"$ref": "#"}), "no text that it allows"),
        (of_schema({"oneOf": [{"const": 1}, {"enum": [1, 2]}]}, strict=True), "`anyOf` can be enforced"),
    ],
)
def test_why_is_said_in_terms_of_who_asks(compiler: ConstraintCompiler, spec: ConstraintSpec, said: str) -> None:
    assert said in refusal(compiler, spec).message


BOMBS = {
    "a chain of references that overflows a stack": of_schema(chain(3000)),
    "rules that overflow a stack": of_kind(
        "lark", "start: a0\n" + "\n".join(f"a{at}: a{at + 1}" for at in range(8000)) + '\na8000: "x"'
    ),
    "a remainder with too many states": of_schema({"type": "integer", "multipleOf": 99_999_999}),
    "patterns that must all match": of_schema(
        {"type": "string", "allOf": [{"pattern": f"(a|b)*{chr(97 + at)}.{{30}}x"} for at in range(20)]}
    ),
}


@pytest.mark.parametrize("spec", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_refused_and_others_are_compiled_meanwhile(
    compiler: ConstraintCompiler, spec: ConstraintSpec
) -> None:
    bomb = compiler.compile(spec)
    compiler.compile(of_kind("regex", f"beside {id(bomb)}")).result(60)
    with pytest.raises(InvalidRequest) as caught:
        bomb.result(60)
    assert caught.value.param == "response_format"
    compiler.compile(of_kind("regex", f"after {id(bomb)}")).result(60)


def test_the_same_constraint_is_compiled_once() -> None:
    class Counting(GrammarChecker):
        num_checks = 0

        def check(self, grammar: str) -> str:
            Counting.num_checks += 1
            return super().check(grammar)

    compiler = ConstraintCompiler(vocabulary, num_workers=1, max_cached=2, make_checker=Counting)
    try:
        for source in ("a", "b", "a", "c", "a", "b"):
            compiler.compile(of_kind("regex", source)).result(60)
        assert Counting.num_checks == 4  # b had to make room for c
    finally:
        compiler.close()


def test_a_warm_compiler_has_its_process_before_the_first_constraint() -> None:
    class Counting(GrammarChecker):
        answers: ClassVar[list[str]] = []

        def check(self, grammar: str) -> str:
            self.answers.append(super().check(grammar))
            return self.answers[-1]

    compiler = ConstraintCompiler(vocabulary, num_workers=1, make_checker=Counting)
    try:
        compiler.warm_up()
        compiler.compile(of_kind("regex", "a")).result(60)
        assert Counting.answers == ["", ""]
    finally:
        compiler.close()


@pytest.mark.parametrize(("limits", "by"), [(("0.3", "60"), signal.SIGPROF), (("60", "0.3"), signal.SIGALRM)])
def test_a_process_ends_by_itself_amid_what_is_too_dear(limits: tuple[str, str], by: signal.Signals) -> None:
    grammar = to_grammar(BOMBS["a remainder with too many states"])
    child = subprocess.Popen(
        [sys.executable, "-m", "engine.constraints.checker_child", *limits],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    answer, _ = child.communicate(json.dumps(grammar).encode() + b"\n", timeout=60)
    assert (child.returncode, answer) == (-by, b"")


def test_a_machine_that_is_too_busy_is_no_fault_of_the_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    # Stopped processes get no processor time, as on a machine that gives it all to others.
    popen, children = subprocess.Popen, []

    def stopped(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        children.append(popen(*args, **kwargs))
        children[-1].send_signal(signal.SIGSTOP)
        return children[-1]

    checker = GrammarChecker(wall_s=0.2)
    monkeypatch.setattr(subprocess, "Popen", stopped)
    with pytest.raises(ResourceExhausted, match="too busy"):
        checker.check('start: "x"')
    assert children[0].wait(60) == -signal.SIGKILL
    monkeypatch.setattr(subprocess, "Popen", popen)
    patient = GrammarChecker()
    assert patient.check('start: "x"') == ""
    patient.close()
    checker.close()


def test_a_model_without_a_tokenizer_refuses() -> None:
    compiler = ConstraintCompiler(lambda: None)
    try:
        assert "tokenizer" in refusal(compiler, of_kind("regex", "a")).message
    finally:
        compiler.close()


def test_a_fault_of_our_own_fails_one_request_alone() -> None:
    class Broken(GrammarChecker):
        def check(self, grammar: str) -> str:
            raise OSError("no more processes")

    compiler = ConstraintCompiler(vocabulary, make_checker=Broken)
    try:
        with pytest.raises(EngineError, match="OSError"):
            compiler.compile(of_kind("regex", "a")).result(60)
    finally:
        compiler.close()


def test_closing_ends_processes_and_threads_even_amid_a_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def remember(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        children.append(popen(*args, **kwargs))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", remember)
    before = set(threading.enumerate())
    compiler = ConstraintCompiler(vocabulary, num_workers=1)
    compiler.compile(of_kind("regex", "a")).result(60)
    bomb = compiler.compile(BOMBS["a remainder with too many states"])
    compiler.close()
    compiler.close()
    assert bomb.done()
    assert [child.poll() is None for child in children] == [False] * len(children)
    assert set(threading.enumerate()) <= before
