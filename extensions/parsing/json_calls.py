"""Calls written as JSON: where a value ends, and what it calls.

The shapes that models write: `{"name": "f", "arguments": {…}}`, the same with `parameters`, around it `{"type":
"function", "function": {…}}`, and lists of these. Line breaks inside strings, which JSON forbids and models write, are
taken; arguments that are a string with JSON in it are taken out of the string.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection
from json.decoder import JSONDecoder
from typing import Any

import msgspec

from extensions.parsing.held_names import HeldNames, may_be_json
from extensions.parsing.parts import Call

ARGUMENT_KEYS = ("arguments", "parameters", "args")
"""Names under which models put the arguments of a call, most usual first."""

NAME_KEYS = ("name", "function", "tool", "tool_name")
"""Names under which models put the name of what they call."""

MAX_NESTED_CALLS = 4
"""Deepest that a call may be wrapped in lists and objects."""

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_SPACE = re.compile(r"[ \t\r\n]*")


def _no_number(literal: str) -> None:
    raise ValueError(f"{literal} is no JSON")


_DECODER = JSONDecoder(strict=False, parse_constant=_no_number)


class JsonExtent:
    """Finds the end of a JSON object or array in text that arrives in pieces. The first character must open it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escapes = False

    def feed(self, text: str) -> int | None:
        """Takes more text; returns the position after the value's last character, or None if it goes on."""
        at = 0
        if self._escapes and text:
            self._escapes, at = False, 1
        while at < len(text):
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(text, at)
            if found is None:
                return None
            at = found.end()
            char = found.group()
            if char == "\\":
                self._escapes = at == len(text)
                at += 1
            elif char == '"':
                self._in_string = not self._in_string
            elif char in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return at
        return None


class _Member(msgspec.Struct, frozen=True):
    """A value of an object and how it is written."""

    value: Any
    raw: str


def read_calls(text: str, names: Collection[str], *, needs_arguments: bool) -> list[Call] | None:
    """Reads a JSON value as calls; None if it is anything else, or calls what is not in `names`.

    Args:
        text: One JSON value.
        names: Of the given tools.
        needs_arguments: A name alone is no call.
    """
    try:
        calls = _calls(text, names, needs_arguments, MAX_NESTED_CALLS)
        if calls is None or not isinstance(names, HeldNames):
            return calls
        are_listed = text.startswith("[")
        texts = _items(text) if are_listed else [text]
        return calls if may_be_json(names, texts, calls, are_listed=are_listed) else None
    except (ValueError, RecursionError):
        return None


def call_of(name: str, arguments: str) -> Call | None:
    """A call of `name` with arguments that are the text of a JSON object; None if they are anything else."""
    try:
        value = _DECODER.decode(arguments)
    except (ValueError, RecursionError):
        return None
    return Call(name, _as_arguments(value, arguments)) if isinstance(value, dict) else None


def read_cut_calls(text: str, names: Collection[str]) -> list[Call] | None:
    """Reads calls of which the last was cut inside its arguments; None if those have not begun, or are no object."""
    calls: list[Call] = []
    texts: list[str] = []
    with contextlib.suppress(ValueError, RecursionError):  # what came before counts
        _read_cut(text, names, calls, texts)
    are_listed = text.lstrip().startswith("[")
    return calls if calls and may_be_json(names, texts, calls, are_listed=are_listed) else None


def _read_cut(text: str, names: Collection[str], calls: list[Call], texts: list[str]) -> None:
    """Adds the calls found, and what each was read from.

    Raises:
        ValueError: What follows those is none.
    """
    at = _skip(text, 0)
    if text[at : at + 1] == "[":
        at = _skip(text, at + 1)
    while at < len(text):
        members, rest = _members(text[at:])
        if rest is not None:
            key, raw = rest
            name = _name(members)
            if name in names and key in ARGUMENT_KEYS and raw.startswith("{"):
                calls.append(Call(name, raw))
                texts.append(text[at:])
            return
        _, end = _DECODER.raw_decode(text, at)
        found = _calls(text[at:end], names, True, 1)
        if found is None:
            calls.clear()
            return
        calls += found
        texts.append(text[at:end])
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)


def _calls(text: str, names: Collection[str], needs_arguments: bool, depth: int) -> list[Call] | None:
    if depth == 0:
        return None
    if text.lstrip().startswith("["):
        found = [_calls(item, names, needs_arguments, depth - 1) for item in _items(text)]
        return [call for calls in found for call in calls or ()] if found and None not in found else None
    members, rest = _members(text)
    if rest is not None:
        return None
    wrapped = members.get("function")
    if wrapped is not None and isinstance(wrapped.value, dict):
        return _calls(wrapped.raw, names, needs_arguments, depth - 1)
    name = _name(members)
    if name not in names:
        return None
    arguments = _arguments(members, needs_arguments)
    return None if arguments is None else [Call(name, arguments)]


def _name(members: dict[str, _Member]) -> str:
    values = [members[key].value for key in NAME_KEYS if key in members]
    return next((value for value in values if isinstance(value, str)), "")


def _arguments(members: dict[str, _Member], needs_arguments: bool) -> str | None:
    """The arguments as the text of a JSON object; None if they are anything else."""
    member = next((members[key] for key in ARGUMENT_KEYS if key in members), None)
    if member is None:
        return None if needs_arguments or members.keys() - {*NAME_KEYS, "type", "id"} else "{}"
    value, raw = member.value, member.raw
    if isinstance(value, str):
        raw = value.strip()
        value = _DECODER.decode(raw) if raw else None
    if value is None:
        return "{}"
    return _as_arguments(value, raw) if isinstance(value, dict) else None


def _as_arguments(value: dict[str, Any], raw: str) -> str:
    """`raw` if it is JSON in every respect, else `value` spelled anew."""
    try:
        json.loads(raw)
    except ValueError:
        return json.dumps(value)
    return raw


def _members(text: str) -> tuple[dict[str, _Member], tuple[str, str] | None]:
    """The members of an object; of text that ends inside one, also its key and how it begins.

    Raises:
        ValueError: It is no JSON object, nor the beginning of one.
    """
    members: dict[str, _Member] = {}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("an object must begin with a brace")
    at = _skip(text, at + 1)
    if text[at : at + 1] == "}":
        return members, None
    while True:
        if text[at : at + 1] != '"':
            raise ValueError("a key must be a string")
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("a key needs a value")
        start = _skip(text, at + 1)
        try:
            value, end = _DECODER.raw_decode(text, start)
        except ValueError:
            if JsonExtent().feed(text[start:]) is not None:
                raise
            return members, (key, text[start:])
        members[key] = _Member(value, text[start:end])
        at = _skip(text, end)
        if text[at : at + 1] == "}":
            return members, None
        if at == len(text):
            return members, (key, text[start:end])
        if text[at : at + 1] != ",":
            raise ValueError("members must be separated by commas")
        at = _skip(text, at + 1)


def _items(text: str) -> list[str]:
    """The items of a list, each as it is written.

    Raises:
        ValueError: It is no JSON list.
    """
    items: list[str] = []
    at = _skip(text, text.index("[") + 1)
    while text[at : at + 1] != "]":
        _, end = _DECODER.raw_decode(text, at)
        items.append(text[at:end])
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise ValueError("items must be separated by commas")
    return items


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
