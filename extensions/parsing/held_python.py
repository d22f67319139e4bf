"""Rules for calls in Python's spelling, `[f(city="Oslo"), g()]`, whose arguments match schemas.

Values are JSON, which Python reads the same but for `true`, `false` and `null`, which readers know. The schema of the
arguments must be one of an object whose properties have names of Python; anything that speaks of several of them at
once has no place to stand.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping
from typing import Any

from engine.constraints.grammar import BOUNDED_WHITESPACE

_ALONE = {"type", "properties", "required", "additionalProperties"}
_SHARED = {"$defs", "definitions"}
_SAYING = {"title", "description", "$schema", "default", "examples", "$id", "$comment"}


class ToolUnfit(ValueError):
    """A tool whose arguments cannot be held to its schema.

    Attributes:
        name: Of the tool.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def python_rules(schemas: Mapping[str, dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Rules with one called `python`, what follows the bracket; and the alternatives of calls that no marker announces.

    Raises:
        ToolUnfit: A schema cannot be enforced.
    """
    numbers = {name: number for number, name in enumerate(schemas) if _is_name(name)}
    if not numbers:
        return [], []
    rules = [
        "python: python_call more",
        f"python_call: {' | '.join(f'python_{number}' for number in numbers.values())}",
        'more: (gap "," gap python_call)* gap "]"',
    ]
    for name, number in numbers.items():
        rules += [
            f"python_{number}: {json.dumps(name + '(')} gap inside_{number}",
            rf"bare_python_{number}[lazy]: /\[{name}\(/",
            *_inside(f"inside_{number}", name, schemas[name]),
        ]
    return rules, [f"bare_python_{number} gap inside_{number} more" for number in numbers.values()]


def _inside(rule: str, name: str, schema: dict[str, Any]) -> list[str]:
    """Rules for what stands behind the bracket of one call, that which closes it included."""
    if schema.get("type") == "object" and not schema.keys() - _SAYING - {"type"}:
        return [
            f'{rule}: (any_{rule} (gap "," gap any_{rule})*)? gap ")"',
            f"any_{rule}: /[A-Za-z_][A-Za-z0-9_]{{0,63}}=/ %json {_value({}, {})}",
        ]
    _check(name, schema)
    properties = schema.get("properties", {})
    wanted = set(schema.get("required", ()))
    shared = {key: schema[key] for key in _SHARED if key in schema}
    rules = [f'{rule}: first_{rule}_0 gap ")"']
    # `first` stands for what may come from a property on where none has come yet, `then` where one has.
    for at, (key, value) in enumerate(properties.items()):
        one = f"one_{rule}_{at}"
        rules.append(f"{one}: {json.dumps(key + '=')} %json {_value(value, shared)}")
        skipped = "" if key in wanted else f" | first_{rule}_{at + 1}"
        rules.append(f"first_{rule}_{at}: {one} then_{rule}_{at + 1}{skipped}")
        skipped = "" if key in wanted else f" | then_{rule}_{at + 1}"
        rules.append(f'then_{rule}_{at}: gap "," gap {one} then_{rule}_{at + 1}{skipped}')
    return [*rules, f'first_{rule}_{len(properties)}: ""', f'then_{rule}_{len(properties)}: ""']


def _check(name: str, schema: dict[str, Any]) -> None:
    """Raises `ToolUnfit` where more is asked of the arguments than can be seen to here."""
    others = sorted(schema.keys() - _ALONE - _SHARED - _SAYING)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not all(isinstance(one, dict | bool) for one in properties.values()):
        others.append("properties")
    elif not isinstance(required, list) or not all(isinstance(one, str) and one in properties for one in required):
        others.append("required")
    elif schema.get("type") != "object":
        others.append("type")
    else:
        others += [f"the property {key!r}" for key in properties if not _is_name(key)]
    if others:
        raise ToolUnfit(name, f"not possible in calls in Python's spelling: {others[0]}")


def _is_name(text: str) -> bool:
    return text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def _value(schema: Any, shared: Mapping[str, Any]) -> str:
    options = {"whitespace_pattern": BOUNDED_WHITESPACE, "lenient": False, "coerce_one_of": False}
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    return json.dumps({**schema, **shared, "x-guidance": options})
