"""From what is asked to a grammar of llguidance: cheap checks here, everything dear elsewhere."""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from engine.constraints.limits import MAX_CHOICES, MAX_DEPTH, MAX_GBNF_CHARS, MAX_REGEX_BYTES, MAX_SOURCE_BYTES
from engine.errors import InvalidRequest
from engine.request import ConstraintKind, ConstraintSpec

BOUNDED_WHITESPACE = r" |\n {0,16}"
"""Between two JSON tokens: nothing, a space, or a new line with its indent."""

_GBNF_RULE = re.compile(r"^\s*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
_UNSUPPORTED = re.compile(r"Unimplemented keys: \[(.*)\]")
_LINE = re.compile(r"at ([0-9]+)\([0-9]+\): invalid regex")
_BAD_PATTERN = re.compile(r"regex parse error:.*?^error: ([^\n]*)", re.MULTILINE | re.DOTALL)
_SCHEMA_RULE = re.compile(r"^arguments_([0-9]+): .*?%json (.*)$", re.MULTILINE)
_IN_SCHEMA = re.compile(r"failed to compile JSON schema: (.*)")
"""What is wrong with a schema inside a grammar; lines of the grammar follow, which the client has not written."""


def to_grammar(spec: ConstraintSpec) -> str:
    """Returns the grammar of a constraint, as `LLMatcher` takes it.

    Raises:
        InvalidRequest: It is too long, too deep or not of its kind; `param` is the client's field.
    """
    limit = MAX_REGEX_BYTES if spec.kind is ConstraintKind.REGEX else MAX_SOURCE_BYTES
    if len(spec.source.encode("utf-8", "replace")) > limit:
        raise refusal(spec.param, f"it is longer than {limit} bytes")
    grammar = _own_grammar(spec)
    return _framed(grammar, spec.frame) if spec.frame else grammar


def _own_grammar(spec: ConstraintSpec) -> str:
    match spec.kind:
        case ConstraintKind.JSON_SCHEMA:
            return _schema_grammar(_read_schema(spec), spec)
        case ConstraintKind.JSON_OBJECT:
            return _schema_grammar({"type": "object"}, spec)
        case ConstraintKind.REGEX:
            return LLMatcher.grammar_from_regex(_whole_text(spec))
        case ConstraintKind.CHOICE:
            return LLMatcher.grammar_from_regex("|".join(map(_literally, _read_choices(spec))))
        case ConstraintKind.LARK:
            return LLMatcher.grammar_from_lark(_as_lark(_whole_text(spec), spec))


def _framed(grammar: str, frame: str) -> str:
    """A grammar as the part `@answer` of another."""
    parts = json.loads(grammar)["grammars"] if grammar.startswith("{") else [{"lark_grammar": grammar}]
    parts[0]["name"] = "answer"
    return json.dumps({"grammars": [{"lark_grammar": frame}, *parts]})


def _as_lark(text: str, spec: ConstraintSpec) -> str:
    """Lark as it is, GBNF translated."""
    if not _GBNF_RULE.search(text):
        return text
    if len(text) > MAX_GBNF_CHARS:
        raise refusal(spec.param, f"it is longer than {MAX_GBNF_CHARS} characters")
    try:
        return any_to_lark(text)
    except Exception as error:  # the translator asserts and indexes its way through bad grammars
        raise refusal(spec.param, f"it is neither Lark nor GBNF: {str(error)[:300]}") from None


def refusal(param: str, reason: str) -> InvalidRequest:
    """What a client is told of a field that cannot be made a constraint."""
    return InvalidRequest(f"'{param}' cannot be enforced: {reason}", param)


def schemas_within(spec: ConstraintSpec) -> list[tuple[str, str]]:
    """The client's fields whose schemas a Lark grammar holds, each with a grammar of nothing but its schema."""
    found = {int(number): schema for number, schema in _SCHEMA_RULE.findall(f"{spec.source}\n{spec.frame}")}
    return [
        (param, LLMatcher.grammar_from_lark(f"start: %json {found[number]}"))
        for number, param in enumerate(spec.schema_params)
        if number in found
    ]


_PLAINER = {
    "NoExtensionBias": "there is no text that it allows",
    "coerce_one_of": "`oneOf` with branches that may hold together; `anyOf` can be enforced",
}
"""What llguidance says in its own terms, by a word of it."""


def explain(error: str) -> str:
    """Says what is wrong with a grammar, given what llguidance says of it."""
    unsupported = _UNSUPPORTED.search(error)
    if unsupported:
        return f"it has keywords that are not supported: {unsupported[1]}"
    pattern = _BAD_PATTERN.search(error)
    if pattern:
        line = _LINE.match(error)
        where = f" in line {line[1]}" if line and line[1] != "1" else ""
        return f"a regular expression{where} cannot be read: {pattern[1]}"
    inner = _IN_SCHEMA.search(error)
    text = inner[1] if inner else error.split("\n<non-verbose/>")[0]
    for said, meant in _PLAINER.items():
        if said in text:
            return meant
    return text.strip()[:500] or "it cannot be compiled"


def depth_of(value: object) -> int:
    """How deep arrays and objects are nested, without recursion."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list):
            deepest = max(deepest, depth)
            waiting += [(child, depth + 1) for child in (item.values() if isinstance(item, dict) else item)]
    return deepest


def _read_schema(spec: ConstraintSpec) -> dict[str, Any]:
    try:
        schema = json.loads(spec.source)
    except RecursionError:
        raise refusal(spec.param, f"it is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise refusal(spec.param, f"it is not JSON: {error}") from None
    if isinstance(schema, bool):
        return _of_boolean(schema)
    if not isinstance(schema, dict):
        raise refusal(spec.param, "a schema is an object")
    if depth_of(schema) > MAX_DEPTH:
        raise refusal(spec.param, f"it is nested deeper than {MAX_DEPTH} levels")
    schema.pop("x-guidance", None)  # options are ours to set
    return schema


def _of_boolean(schema: object) -> dict[str, Any]:
    return {} if schema else {"enum": []}


def _schema_grammar(schema: dict[str, Any], spec: ConstraintSpec) -> str:
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_options(spec))  # type: ignore[arg-type]


def _options(spec: ConstraintSpec) -> dict[str, Any]:
    options: dict[str, Any] = {"lenient": not spec.strict, "coerce_one_of": not spec.strict}
    if spec.whitespace_pattern is not None:
        options["whitespace_pattern"] = spec.whitespace_pattern
    elif spec.compact:
        options["whitespace_flexible"] = False
    else:
        options["whitespace_pattern"] = BOUNDED_WHITESPACE
    return options


def _whole_text(spec: ConstraintSpec) -> str:
    if not spec.source.strip():
        raise refusal(spec.param, "it is empty")
    return spec.source


def _read_choices(spec: ConstraintSpec) -> list[str]:
    choices = json.loads(spec.source)
    if not choices or not all(isinstance(choice, str) and choice for choice in choices):
        raise refusal(spec.param, "it must be a list of strings, none of them empty")
    if len(choices) > MAX_CHOICES:
        raise refusal(spec.param, f"it has more than {MAX_CHOICES} strings")
    return list(dict.fromkeys(choices))


def _literally(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)
